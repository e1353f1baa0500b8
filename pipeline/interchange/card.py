"""The data set card of exported features: what hubs read, and where the rows come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.interchange.rows import KEY
from sightline.cache import FeatureSpec
from sightline.cache.feature_kind import is_of_texts, known_kind

_TEMPLATE = """\
---
{{ card_data }}
---

# Features of kind {{ kind }}, {{ "{:,}".format(dim) }} numbers each

One row per {{ what }}, computed once by a frozen encoder. {{ length }} `{{ key }}` is the SHA-256 \
of the {{ described }}.

```python
{{ load }}
```

`{{ key }}` has 64 hexadecimal digits here. In a manifest of a prepared data set, {{ there }}:

```python
{{ join }}
```

## Provenance

{% for name, value in provenance.items() %}    {{ (name + ":").ljust(21) }}{{ value }}
{% endfor %}
{% if untrained %}**Untrained weights**: the encoder's weights are random; these rows are for tests.

{% endif %}## Licence

The rights in the data that these features describe stay with its owners; see *Licence of the \
data* above.\
{% if columns %} The columns {{ columns }} come from that data: the first name of each row, the \
ids of all, and the split of each id.{% endif %}\
{% if licence %} The licence in this card, `{{ licence }}`, is that of the features.{% endif %}
"""
_LENGTHS = {
    True: "Every row has length 1.",
    False: "Rows are as the encoder returned them, not normalised: divide by their length before "
    "taking cosines.",
    None: "Whether rows were normalised is not recorded.",
}
_LOAD = {
    "parquet": (
        "import numpy as np\nfrom datasets import load_dataset\n\n"
        'rows = load_dataset("path/to/this/folder", split="train")\n'
        'rows = rows.with_format("numpy", dtype=np.{dtype})\n'
        'rows[0]["features"]  # {dtype} [{dim}]'
    ),
    "npy": (
        "import numpy as np\nimport pyarrow.parquet as pq\n\n"
        'rows = np.load("{emb}/{emb}_0000.npy", mmap_mode="r")  # {dtype} [n, {dim}]\n'
        'names = pq.read_table("metadata/metadata_0000.parquet")  # row i belongs to rows[i]'
    ),
}
_JOIN = """\
{first}import pyarrow.parquet as pq

rows = pq.read_table("path/to/this/folder/{table}").to_pandas()
{name} = pq.read_table("path/to/manifests/{name}.parquet").to_pandas()
{name}["{key}"] = {value}
joined = {name}.merge(rows, on="{key}")"""
_BYTES = {
    "image": ("images", 'images["key"].map(bytes.hex)', "a key is 32 bytes"),
    "object": ("phrases", 'phrases["cutout_key"].map(bytes.hex)', "it is `cutout_key`, 32 bytes"),
    "caption": (
        "captions",
        '[sha256(text.encode()).hexdigest() for text in captions["text"]]',
        "texts have no key",
    ),
}
"""What a row is of → the manifest, its keys as those of an export, and what they are there."""


def card(
    spec: FeatureSpec,
    form: str,
    provenance: Mapping[str, str],
    licence: str | None,
    columns: Sequence[str],
) -> str:
    """README.md of an exported set.

    Args:
        form: parquet or npy.
        provenance: name → value on one line.
        licence: identifier of the features' licence; None: not stated.
        columns: names written beside the keys.
    """
    from huggingface_hub import DatasetCard, DatasetCardData

    texts, kind = is_of_texts(spec.kind), known_kind(spec.kind)
    path = "data/*.parquet" if form == "parquet" else "metadata/*.parquet"
    front = DatasetCardData(
        license=licence or "other",
        tags=["sightline", "embeddings", f"{spec.kind}-features"],
        configs=[{"config_name": "default", "data_files": [{"split": "train", "path": path}]}],
    )
    row_of = "image" if kind is None else kind.row_of
    described = "text's UTF-8" if texts else "image file's bytes"
    if row_of == "object":
        described = "image's key, its mask and the rule that cut it out"
    name, value, place = _BYTES[row_of]
    first = "from hashlib import sha256\n\n" if texts else ""
    table = "data" if form == "parquet" else "metadata"
    emb = "text_emb" if texts else "img_emb"
    text = DatasetCard.from_template(
        front,
        template_str=_TEMPLATE,
        kind=spec.kind,
        dim=spec.dim,
        what="text" if texts else spec.kind,
        length=_LENGTHS[spec.normalised],
        key=KEY,
        described=described,
        load=_LOAD[form].format(dtype=spec.dtype, dim=spec.dim, emb=emb),
        there=place,
        join=_JOIN.format(first=first, table=table, name=name, key=KEY, value=value),
        provenance=provenance,
        untrained=spec.encoder.untrained,
        columns=", ".join(f"`{name}`" for name in columns),
        licence=licence,
    )
    return str(text)
