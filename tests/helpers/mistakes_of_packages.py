"""Mistakes in the package of docs/extending.md, and what each is called.

Each is the name of a module, a text in it, what stands in its place, the command that meets it, and
a part of the error.
"""

ENCODING = ("extract", "image", "--data", "data/raw/album/pictures", "--encoder", "thumbnail:small")
ENCODING += ("--weights", "random:0", "--out", "out", "--workers", "0")
GROUNDING = ("ground", "--data", "mine", "--out", "out", "--set", "captions=all")
GROUNDING += ("--set", "grounder.family=glossary", "--set", "grounder.words=[dog, tree]")
GROUNDING += ("--set", "segmenter.family=ellipse", "--set", "rules.duplicate_iou=null")
PREPARING = ("prepare", "sidecar", "--images", "data/raw/album/pictures", "--out", "out")
TRAINING = (
    "train",
    "hardest",
    "--set",
    "image=thumbnail",
    "--features",
    "image-thumbnail=features",
)
ON_TEXT = ("--data", "mine", "--tokens", "tokens", "--student", "bert-base-uncased")
ON_TEXT += ("--epochs", "1", "--out", "runs/x")
TRAINING += ON_TEXT
WITH_STATE = ("train", "slow", *ON_TEXT)
SCORING = ("evaluate", "odd-one-out", "--data", "odd.tsv", "--model", "bert-base-uncased")
SCORING += ("--pooling", "cls", "--out", "results")
MISTAKES = [
    ("thumbnail", "return ImageEncoder(", "return (", ENCODING, "encoder.ImageEncoder"),
    ("thumbnail", "preprocessing, device, enc", "{}, device, enc", ENCODING, "preprocessing: fo"),
    ("thumbnail", "(identity, DIMS[", "('me', DIMS[", ENCODING, "EncoderRecord; found 'me'"),
    ("thumbnail", "DIMS[self.model], prep", "3, prep", ENCODING, "float32 [64, 3]"),
    ("thumbnail", "layer(images.flatten(1))", "layer(images)", ENCODING, "fault of the package"),
    ("thumbnail", "resize=size", "resize=list(size)", ENCODING, "resize: found [8, 8]"),
    ("thumbnail", 'interpolation="bilinear"', 'interpolation="nearest"', ENCODING, "'bicubic'"),
    ("thumbnail", "std=(0.5, 0.5, 0.5)", "std=(0.5, 0.0, 0.5)", ENCODING, "std.1: found 0.0"),
    ("thumbnail", "mean=(0.5, 0.5, 0.5)", "mean=(0.5, 0.5)", ENCODING, "mean.2: found"),
    ("thumbnail", "images.flatten(1)).float()", "images.flatten(1)).double()", ENCODING, "float32"),
    ("thumbnail", "DIMS[self.model], prep", "0, prep", ENCODING, "than or equal to 1; found 0"),
    ("thumbnail", "identity_of(layer, f", "identity_of(layer, [], f", ENCODING,
     "fault of the package"),
    ("glossary", '"words": self._words', '"words": {1}', GROUNDING, "JSON"),
    ("glossary", "box, torch.ones(1)", "box, 2 * torch.ones(1)", GROUNDING, "expected 0 to 1"),
    ("glossary", "box, torch.ones(1)", "box.double(), torch.ones(1)", GROUNDING, "float32 [1, 4]"),
    ("glossary", "match.start(), ", "-match.start(), ", GROUNDING, "span"),
    ("ellipse", "** 2 <= self._scale**2", "** 2 - self._scale**2", GROUNDING, "expected bool"),
    ("hardest", 'head="image"', "head=3", TRAINING, "features.0.head"),
    ("hardest", "float]:\n        return {", "float]:\n        return 3, {",
     TRAINING, "weights: found (3"),
    ("hardest", "        return terms\n", "        return {}\n", TRAINING, "terms of a batch of"),
    ("odd_one_out", 'Metric("odd one out"', "Metric(3", SCORING, "metrics.0.name"),
    ("glossary", "return GlossaryGrounder(self.words)", "return 3", GROUNDING,
     "describe of what it makes: found None"),
    ("glossary", "return [self._answer(*each) for", "return [() for", GROUNDING, "(phrases, "),
    ("glossary", "strict=True)]", "strict=True)][1:]", GROUNDING, "ground, answers: found"),
    ("glossary", "Grounded(match[0]", "Grounded('x'", GROUNDING, "the caption's own characters"),
    ("glossary", "Grounded(match[0], match.start(), match.end()", "Grounded('', 500, 503",
     GROUNDING, "found (500, 503)"),
    ("glossary", "Grounded(match[0], match.start(), match.end()", "Grounded('', 3, 3",
     GROUNDING, "of '' in '"),
    ("glossary", "torch.ones(1))", "torch.ones(2))", GROUNDING, "float32 [1]"),
    ("glossary", "torch.ones(1))", "torch.ones(1), torch.ones(2, 1, 1) > 0)", GROUNDING,
     "masks: found 2 (int), expected one for each of 1 boxes"),
    ("glossary", "torch.ones(1))", "torch.ones(1), [True])", GROUNDING, "torch.Tensor"),
    ("glossary", '"no_phrase"', '"nothing"', GROUNDING, "drops.0.reason: found 'nothing'"),
    ("ellipse", "return [self._fill(image, some)", "return [None", GROUNDING, "torch.Tensor"),
    ("glossary", "torch.ones(1))", "torch.ones(1).numpy())", GROUNDING,
     "scores: found array([1.], dtype=float32) (ndarray), expected a torch.Tensor"),
    ("glossary", "Grounded(match[0], match.start(), match.end()", "Grounded(match[0], 'a', 'b'",
     GROUNDING, "a span.0: found 'a' (str)"),
    ("ellipse", "return [self._fill(image, some)", "return None and [self._fill(image, some)",
     GROUNDING, "segment: found None (NoneType), expected a collections.abc.Sequence"),
    ("ellipse", "strict=True)]", "strict=True)][1:]", GROUNDING,
     "segment: found 3 (int), expected one for each of 4 images"),
    ("sidecar", "write_named(folder, images, samples, report, where=str(self.images))", "pass",
     PREPARING, "did not write"),
    ("sidecar", "texts=texts)", "texts=texts, ids=['x'])", PREPARING,
     "sample, ids: found 1 (int), expected one for each of 2 texts"),
    ("sidecar", "texts=texts)", "texts=texts, split='val')", PREPARING, "'val'"),
    ("sidecar", "texts=texts)", "texts=[3 for _ in texts])", PREPARING,
     "sample.texts.0: found 3 (int)"),
    ("sidecar", "samples.append(Sample(", "samples.append(dict(", PREPARING, "sample: found"),
    ("hardest", '    name: ClassVar[str] = "hardest"\n', "", TRAINING, "name: found None"),
    ("hardest", 'str] = "hardest"', 'str] = "harder"', TRAINING, "expected 'hardest', as"),
    ("slow", "return SlowCopy(self, hidden, dims)", "return 3", WITH_STATE, "build: found 3"),
    ("hardest", 'FeatureNeed("image", self.image, ("hinge",), head="image")', "0", TRAINING,
     "FeatureNeed"),
    ("hardest", "        return terms\n", "        return []\n", TRAINING, "a builtins.dict"),
    ("hardest", '/ 2\n', '/ torch.ones(2)\n', TRAINING, "scalars named"),
    ("odd_one_out", "Settings = TaskSettings", "Settings = dict", SCORING, "a subclass"),
    ("odd_one_out", "return TaskResult(scores=", "return dict(scores=", SCORING, "TaskResult"),
    ("odd_one_out", "return (Metric(", "return ((3, ", SCORING, "Metric"),
    ("sidecar", "where=str(self.images))", "where=str(self.images)); self._spoil(folder)",
     PREPARING,
     "columns of captions.parquet: found ['text']"),
    ("odd_one_out", "return (sentence for triple", "return (3 for triple", SCORING,
     "sentences.0: found 3"),
    ("odd_one_out", "return (sentence for triple in self.triples for sentence in triple)",
     "return 'a dog'", SCORING, "sentences: found 'a dog'"),
    ("hardest", "    def terms(", "    def statistics(self, batch):\n        return {'x': 3}\n\n"
     "    def terms(", TRAINING, "statistics, x: found 3"),
    ("hardest", "    def terms(", "    def statistics(self, batch):\n        return []\n\n"
     "    def terms(", TRAINING, "statistics: found []"),
    ("hardest", "    def terms(", "    def warnings(self, batches):\n        return 'odd'\n\n"
     "    def terms(", TRAINING, "warnings: found 'odd'"),
    ("sidecar", ", progress: Progress | None = None", "", PREPARING,
     "prepare: takes (self, folder, report), expected (self, folder, report, progress)"),
    ("thumbnail", "device: torch.device, precision: str)", "device: torch.device)", ENCODING,
     "build_image: takes (self, device), expected (self, device, precision)"),
    ("thumbnail", "def encode(images: Tensor)", "def encode()", ENCODING,
     "encode of what it makes: takes (), expected (images)"),
    ("thumbnail", ".float()", ".float().numpy()", ENCODING, "expected a torch.Tensor"),
    ("thumbnail", "with computing(device, precision):", "if True:", ENCODING,
     "expected rows without a gradient"),
    ("glossary", "captions: Sequence[Caption])", "captions, boxes)", GROUNDING,
     "ground of what it makes: takes (images, captions, boxes), expected (images, captions)"),
    ("glossary", "describe(self)", "describe(self, more)", GROUNDING,
     "describe of what it makes: takes (more), expected ()"),
    ("ellipse", ", boxes: Sequence[Tensor])", ")", GROUNDING,
     "segment of what it makes: takes (images), expected (images, boxes)"),
    ("ellipse", "return [self._fill(image, some)", "return [self._fill(image, some)[0]", GROUNDING,
     "segment: found bool ["),
    ("slow", "start(self, student: Student)", "start(self)", WITH_STATE,
     "SlowCopy: start: takes (self), expected (self, student)"),
    ("slow", "hidden: int, dims: Mapping[str, int]", "hidden: int", WITH_STATE,
     "build: takes (self, hidden), expected (self, hidden, dims)"),
    ("hardest", ', head="image")', ")", TRAINING,
     "terms: found 'image' (str), expected a head, "),
    ("hardest", 'self.image))', 'self.image, of="others"))', TRAINING,
     "terms: found 'others/image-thumbnail' (str), expected a head, a block or features that"),
    ("hardest", 'FeatureNeed("image"', 'FeatureNeed("images"', TRAINING,
     "features, kind: found 'images' (str), expected one of image, object, text, teacher, bright"),
    ("hardest", '("hinge",)', '("far",)', TRAINING,
     "features, terms: found 'far' (str), expected terms that have a weight (text, hinge)"),
    ("hardest", 'head="image")', 'head="text")', TRAINING,
     "features, head: found 'text' (str), expected a name without dots, neither text nor gr"),
    ("hardest", 'head="image")', 'head="an.image")', TRAINING, "features, head: found 'an.image'"),
    ("hardest", '"hinge": self.weight}', '"hinge": -self.weight}', TRAINING,
     "weights.hinge: found -0.05 (float), expected Input should be greater than or equal to 0"),
    ("hardest", '"hinge": self.weight}', '"hinge": math.nan}', TRAINING,
     "weights.hinge: found nan (float), expected Input should be"),
    ("hardest", "    def terms(", "    def identity(self):\n        return 3\n\n    def terms(",
     TRAINING, "identity: found 3 (int), expected a builtins.dict"),
    ("hardest", "    def terms(", "    def describe(self):\n        return 3\n\n    def terms(",
     TRAINING, "describe: found 3 (int), expected"),
    ("hardest", '= "hardest"\n', '= "hardest"\n    version: ClassVar[int] = 3\n', TRAINING,
     "version: found 3 (int), expected a text"),
    ("hardest", "/ 2\n", "* math.nan\n", TRAINING,
     "is nan. Nothing is saved after it; there is no checkpoint. Fix the loss of the package"),
    ("slow", "        for own, new", "        del self.heads['text']\n        for own, new",
     WITH_STATE, "after_step: found 'objective.heads.text.0.bias []'"),
    ("odd_one_out", "100 * float(np.mean(found))", "float('nan')", SCORING,
     "'TaskResult.scores.odd one out: Input should be a finite number; found nan' is a fault of"),
    ("odd_one_out", '    needs = "a TSV', '    need = "a TSV', SCORING, "needs: found None"),
    ("odd_one_out", "model: EvaluatedModel)", "model, more)", SCORING,
     "score: takes (self, model, more), expected (self, model)"),
]  # fmt: skip
SPOILING = """
    def _spoil(self, folder):
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"text": ["a"]}), folder / "captions.parquet")
"""
