"""Train a sentence encoder on your own photographs.

    python examples/own_photographs.py PHOTOS CAPTIONS STUDENT ENCODER WEIGHTS

such as: photos captions.csv bert-base-uncased resnet50 pretrained:IMAGENET1K_V1
(CAPTIONS has the columns `image` and `caption`, or lines `name.jpg#0<TAB>caption`.)
"""

import sys

from pipeline import extract_features, named_encoder, prepare_dataset, tokenize
from train import make_objective, train_model

photos, captions, student, encoder, weights = sys.argv[1:]
data = prepare_dataset("pairs", "mine/data", images=photos, captions=captions)
images = extract_features(data, named_encoder(encoder, weights), "mine/features")
tokenize(data.texts, student, 32, "mine/tokens")
objective = make_objective("mcse", {"image": encoder})
inputs = {"tokens": "mine/tokens", "pairs": data.folder, "sentences": data.folder}
print(train_model(objective, student, "mine/run", features={f"image-{encoder}": images}, **inputs))
