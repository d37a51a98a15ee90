"""SVG as an image, for pages that take styles and SVG away, as GitHub does."""

from __future__ import annotations

import base64
from html import escape


def as_image(svg: str, style: str, label: str, width: str = "width:100%") -> str:
    """An SVG element as an image that carries its own style; `width` is the image's, as CSS."""
    alone = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    drawing = alone.replace(">", f"><style>{style}</style>", 1)
    data = base64.b64encode(drawing.encode()).decode()
    return f'<img style="{width}" alt="{escape(label)}" src="data:image/svg+xml;base64,{data}">'
