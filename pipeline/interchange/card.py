"""The data set card of exported features: what hubs read, and where the rows come from."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.interchange.row_files import KEY, Form
from sightline.cache import FeatureSpec

_PREVIEW = {Form.PARQUET: "data/*.parquet"}  # of the others, hubs show the metadata
_LOAD = {
    Form.PARQUET: (
        "import numpy as np\nfrom datasets import load_dataset\n\n"
        'rows = load_dataset("path/to/this/folder", split="train")\n'
        'rows = rows.with_format("numpy", dtype=np.{dtype})\n'
        'rows[0]["features"]  # {dtype} [{dim}]'
    ),
    Form.NPY: (
        "import numpy as np\nimport pyarrow.parquet as pq\n\n"
        'rows = np.load("{emb}/{emb}_0000.npy", mmap_mode="r")  # {dtype} [n, {dim}]\n'
        'names = pq.read_table("metadata/metadata_0000.parquet")  # row i belongs to rows[i]'
    ),
    Form.SAFETENSORS: (
        "import pyarrow.parquet as pq\nfrom safetensors.numpy import load_file\n\n"
        'rows = load_file("data/rows-0000.safetensors")["features"]  # {dtype} [n, {dim}]\n'
        'names = pq.read_table("metadata/metadata_0000.parquet")  # row i belongs to rows[i]'
    ),
}


def card(
    spec: FeatureSpec,
    form: Form,
    described: dict[str, str],
    licence: str | None,
    columns: Sequence[str],
) -> str:
    """README.md of an exported set.

    Args:
        described: provenance, name → value on one line.
        licence: identifier of the features' licence; None: not stated.
        columns: names written beside the keys.
    """
    encoder = spec.encoder
    front = [f"license: {licence or 'other'}", "tags:", "- sightline", "- embeddings"]
    front += [f"- {spec.kind}-features"]
    front += ["configs:", "- config_name: default", "  data_files:", "  - split: train"]
    front += [f'    path: "{_PREVIEW.get(form, "metadata/*.parquet")}"']
    emb = "text_emb" if spec.kind in ("text", "teacher") else "img_emb"
    load = _LOAD[form].format(dtype=spec.dtype, dim=spec.dim, emb=emb)
    length = {
        True: "Every row has length 1.",
        False: "Rows are as the encoder returned them, not normalised: divide by their length "
        "before taking cosines.",
        None: "Whether rows were normalised is not recorded.",
    }[spec.normalised]
    described_by = "text's UTF-8" if spec.kind in ("text", "teacher") else "image file's bytes"
    if spec.kind == "object":
        described_by = "image's key, its mask and the rule that cut it out"
    parts = [
        "---\n" + "\n".join(front) + "\n---",
        f"# Features of kind {spec.kind}, {spec.dim:,} numbers each",
        f"One row per {spec.kind if spec.kind != 'teacher' else 'text'}, computed once by a frozen "
        f"encoder. {length} `{KEY}` is the SHA-256 of the {described_by}.",
        f"```python\n{load}\n```",
        "## Provenance\n\n"
        + "\n".join(f"    {name + ':':21}{value}" for name, value in described.items()),
    ]
    if encoder.untrained:
        parts.append(
            "**Untrained weights**: the encoder's weights are random; these rows are for tests."
        )
    own = f" The licence in this card, `{licence}`, is that of the features." if licence else ""
    texts = f" The column `{columns[0]}` comes from that data." if columns else ""
    parts.append(
        "## Licence\n\nThe rights in the data that these features describe stay with its owners; "
        f"see *Licence of the data* above.{texts}{own}"
    )
    parts.append(
        "## Back into Sightline\n\n    sightline cache import path/to/this/folder --out "
        f"features/{spec.kind}\n\nrestores the set without a changed bit, from `export.json`."
    )
    return "\n\n".join(parts) + "\n"
