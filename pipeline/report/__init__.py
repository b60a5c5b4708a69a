"""The report: what all records say, on the terminal and as HTML, CSV, LaTeX and figures."""
