"""The demo's data set at its smallest: every part is there, none of it is good."""

TINY = {
    "scenes": 24,
    "sentences": 10,
    "train_pairs": 11,
    "dev_pairs": 11,
    "test_pairs": 11,
    "resnet_steps": 1,
    "clip_steps": 2,
    "teacher_steps": 1,
    "student_layers": 1,
    "student_hidden": 32,
}
