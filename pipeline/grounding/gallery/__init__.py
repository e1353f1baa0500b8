"""One HTML page to inspect a grounding: photographs, boxes, masks, phrases, cut-outs, drops.

Nothing is imported here; start at `page.write_gallery`.
"""
