"""Views of a result: text and HTML from the same data. A view formats and never computes."""
