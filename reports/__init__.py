"""Renderers over the objects of `matrix`: terminal, Markdown, HTML, JSON, JUnit."""
