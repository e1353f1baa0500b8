"""Oracles: each loss again, in float64 NumPy, loop by loop, from the paper's equation.

Nothing here is shared with train/losses, nothing is vectorised, and nothing is rearranged for
precision: what stands here is what the equation says.
"""

import math

import numpy as np


def cosine(a, b):
    return float(np.dot(a, b)) / (math.sqrt(np.dot(a, a)) * math.sqrt(np.dot(b, b)))


def info_nce(queries, keys, temperature):
    """SimCSE eq. 1."""
    total = 0.0
    for i in range(len(queries)):
        positive = math.exp(cosine(queries[i], keys[i]) / temperature)
        everything = 0.0
        for j in range(len(keys)):
            everything += math.exp(cosine(queries[i], keys[j]) / temperature)
        total += -math.log(positive / everything)
    return total / len(queries)


def adaptive_margin_nce(
    queries,
    keys,
    soft_labels,
    margin,
    temperature,
    threshold=None,
    filter_scores=None,
    margin_gate=False,
):
    """KDMCSE eq. 13, with the released code's two switches."""
    total = 0.0
    for i in range(len(queries)):
        positive = math.exp(cosine(queries[i], keys[i]) / temperature)
        negatives = 0.0
        for j in range(len(keys)):
            if j == i:
                continue
            score = soft_labels[i][j] if filter_scores is None else filter_scores[i][j]
            if threshold is not None and score >= threshold:
                continue
            theta = math.acos(min(1.0, max(-1.0, cosine(queries[i], keys[j]))))
            delta = abs(1.0 - soft_labels[i][j])
            if margin_gate and not theta > margin:
                delta = 0.0
            moved = max(0.0, theta - margin * delta)
            negatives += math.exp(math.cos(moved) / temperature)
        total += -math.log(positive / (positive + negatives))
    return total / len(queries)


def removed_share(scores, threshold):
    removed, negatives = 0, 0
    for i in range(len(scores)):
        for j in range(len(scores)):
            if i != j:
                negatives += 1
                removed += scores[i][j] >= threshold
    return removed / negatives if negatives else 0.0


def consistency_loss(text, image, mismatched_image, margin):
    """DALR eq. 5."""
    values = []
    for i in range(len(text)):
        values.append(1.0 - cosine(text[i], image[i]))
        values.append(max(0.0, cosine(text[i], mismatched_image[i]) - margin))
    return sum(values) / len(values)


def softmax(row):
    exponentials = [math.exp(x) for x in row]
    return [x / sum(exponentials) for x in exponentials]


def kl_alignment(target_scores, student_scores, target_temperature, student_temperature):
    """DALR eq. 12."""
    total = 0.0
    for i in range(len(target_scores)):
        p = softmax([x / target_temperature for x in target_scores[i]])
        q = softmax([x / student_temperature for x in student_scores[i]])
        for j in range(len(p)):
            if p[j] > 0.0:
                total += p[j] * math.log(p[j] / q[j])
    return total / len(target_scores)


def cross_modal_alignment(
    text, image, teacher_text, teacher_image, target_temperature, student_temperature
):
    """DALR eqs. 6–8."""
    rows = range(len(text))
    from_texts = [[cosine(text[i], image[j]) for j in rows] for i in rows]
    from_images = [[cosine(text[i], image[j]) for i in rows] for j in rows]
    text_targets = [[cosine(teacher_text[i], teacher_text[j]) for j in rows] for i in rows]
    image_targets = [[cosine(teacher_image[i], teacher_image[j]) for j in rows] for i in rows]
    temperatures = target_temperature, student_temperature
    return 0.5 * (
        kl_alignment(text_targets, from_texts, *temperatures)
        + kl_alignment(image_targets, from_images, *temperatures)
    )


def list_mle_of_order(student, order):
    """DALR eq. 10 for one row and one order of its columns."""
    total = 0.0
    for k in range(len(order)):
        rest = sum(math.exp(student[column]) for column in order[k:])
        total += -math.log(math.exp(student[order[k]]) / rest)
    return total


def list_mle(student_scores, teacher_scores):
    """DALR eq. 10, mean over rows; the teacher's scores must have no ties."""
    total = 0.0
    for student, teacher in zip(student_scores, teacher_scores, strict=True):
        order = sorted(range(len(teacher)), key=lambda column: -teacher[column])
        total += list_mle_of_order(student, order)
    return total / len(student_scores)


def object_phrase_nce(phrases, objects, owners, temperature):
    """MCSEO eq. 7."""
    captions = []
    for owner in sorted(set(owners)):
        own = [k for k in range(len(owners)) if owners[k] == owner]
        if len(own) < 2:
            continue
        total = 0.0
        for k in own:
            positive = math.exp(cosine(phrases[k], objects[k]) / temperature)
            everything = sum(math.exp(cosine(phrases[k], objects[j]) / temperature) for j in own)
            total += -math.log(positive / everything)
        captions.append(total)
    return sum(captions) / len(captions) if captions else 0.0
