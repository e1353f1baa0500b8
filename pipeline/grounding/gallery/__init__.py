"""One HTML page to inspect a grounding: photographs, boxes, masks, phrases, cut-outs, drops."""
