"""Frozen features for a classifier: photographs in one folder per class.

    python examples/classifier.py PHOTOS ENCODER WEIGHTS

such as: photos resnet50 pretrained:IMAGENET1K_V1, with photos/cat/1.jpg, photos/dog/2.jpg, …
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

import sightline as sl

photos, encoder, weights = sys.argv[1:]
features = sl.extract_features(photos, sl.named_encoder(encoder, weights), "classifier/features")
files = [path for path in sorted(Path(photos).glob("*/*")) if path.is_file()]
rows = features.take([sl.key_of_file(path) for path in files]).astype(np.float32)
rows /= np.linalg.norm(rows, axis=1, keepdims=True)  # the cache holds what the encoder returned
classes = [path.parent.name for path in files]
scores = cross_val_score(LogisticRegression(max_iter=1000), rows, classes, cv=3)
print(f"{len(rows)} photographs, {len(set(classes))} classes: accuracy {scores.mean():.2f}")
