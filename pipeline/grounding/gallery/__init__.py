"""One HTML page to look at what was grounded: photographs, boxes, masks, phrases, cut-outs, drops.

Nothing is imported here; start at `page.write_gallery`.
"""
