"""Train a sentence encoder on your own photographs.

    python examples/own_photographs.py PHOTOS CAPTIONS STUDENT ENCODER WEIGHTS

such as: photos captions.csv bert-base-uncased resnet50 pretrained:IMAGENET1K_V1
(CAPTIONS has the columns `image` and `caption`, or lines `name.jpg#0<TAB>caption`.)
"""

import sys

import sightline as sl

photos, captions, student, encoder, weights = sys.argv[1:]
data = sl.prepare_dataset("pairs", "mine/data", images=photos, captions=captions)
images = sl.extract_features(data, sl.named_encoder(encoder, weights), "mine/features")
sl.tokenize(data.texts, student, 32, "mine/tokens")
objective = sl.make_objective("mcse", {"image": encoder})
inputs = {"tokens": "mine/tokens", "pairs": data.folder, "sentences": data.folder}
features = {f"image-{encoder}": images}
print(sl.train_model(objective, student, "mine/run", features=features, **inputs))
