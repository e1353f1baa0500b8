"""Everything that a data set can lose while it is prepared, with what to do about it."""

from __future__ import annotations

from sightline.outside_tables import FETCH

KEY_WITH_DOT = (
    "WebDataset ends a key at the first dot: rename the members, so that no key contains one"
)
AMBIGUOUS = "several files have this name: write the path from the folder `images`"

LOSSES: dict[str, str] = {
    "captions_of_ambiguous_image": AMBIGUOUS,
    "captions_that_look_quoted": "only .csv has quotation marks around values: write .csv",
    "captions_whose_key_contains_a_dot": KEY_WITH_DOT,
    "captions_without_image": "check the names in the captions, and that their images are there",
    "captions_without_their_control_characters": "",
    "captions_whose_key_has_another": "only the first text of a key is kept",
    "empty_captions": "",
    "images_above_1_gib": "",
    "images_in_two_splits": "they are the same file: remove one of them",
    "images_outside_their_folder": "paths start from the folder `images`",
    "images_whose_key_contains_a_dot": KEY_WITH_DOT,
    "images_whose_key_has_another": "only the first image of a key is kept",
    "images_without_caption": "",
    "images_without_file": "check the folder `images`",
    "incomplete_shards": "get them again",
    "members_with_a_name_used_before": "only the first is kept",
    "members_with_unusable_names": "",
    "missing_files": "",
    "rows_without_image": "",
    "shards_not_read": "name them with `shards`, such as '**/*.tar'; decompress .tar.gz first",
    "shards_with_links_or_devices": "",
    "shards_without_images": "",
    "split_entries_of_ambiguous_image": AMBIGUOUS,
    "split_entries_without_image": "check the names in the lists of splits",
    "tables_not_read": "no split has them: see the data set's description, or move them out",
    "unreadable_images": "",
    "urls_in_place_of_images": FETCH,
    "unusable_captions": "",
}
"""Kind of loss, as in ``dataset.json`` → remedy, where one is known that its name does not say."""


def spelled(loss: str) -> str:
    """A kind of loss in words."""
    return loss.replace("_", " ")
