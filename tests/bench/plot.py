# SPDX-License-Identifier: Apache-2.0
"""Draws a figure against the number of clients, a line for each side, as SVG. Used by report.py; needs nothing but Python."""
import math

COLOURS = {"native": "#7f7f7f", "mps": "#2a9d3a", "ours": "#1f5fbf"}
NAMES = {"native": "native", "mps": "NVIDIA MPS", "ours": "mpsshim"}
WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 46, 56


def step_of(largest):
    """A round distance between grid lines, for about five of them."""
    magnitude = 10 ** math.floor(math.log10(largest / 5))
    return next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= largest / 5)


def line_chart(title, y_title, series):
    """series: {side: [(clients, value)...]}; clients on a logarithmic axis, values on a linear one from 0."""
    clients = sorted({x for points in series.values() for x, _ in points})
    largest = max(y for points in series.values() for _, y in points)
    step = step_of(largest)
    top = math.ceil(largest / step) * step
    span = math.log2(clients[-1] / clients[0]) or 1

    def x_of(count):
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(count / clients[0]) / span

    def y_of(value):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="13" fill="#222">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="20" font-size="15" font-weight="bold">{title}</text>',
    ]
    for i in range(round(top / step) + 1):
        y = y_of(i * step)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{i * step:g}</text>')
    last_label = -math.inf
    for count in clients:
        x = x_of(count)
        parts.append(f'<line x1="{x:.1f}" y1="{y_of(0):.1f}" x2="{x:.1f}" y2="{y_of(0) + 5:.1f}" stroke="#222"/>')
        if x - last_label > 24:
            parts.append(f'<text x="{x:.1f}" y="{y_of(0) + 20:.1f}" text-anchor="middle">{count}</text>')
            last_label = x
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">clients</text>')
    parts.append(f'<text x="18" y="{middle}" text-anchor="middle" transform="rotate(-90 18 {middle})">{y_title}</text>')
    legend_x = LEFT
    for side, points in series.items():
        colour = COLOURS[side]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3.5" fill="{colour}"><title>{x} clients: {y:.3g}</title></circle>'
                  for x, y in points]
        parts.append(f'<line x1="{legend_x}" y1="34" x2="{legend_x + 22}" y2="34" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{legend_x + 28}" y="38">{NAMES[side]}</text>')
        legend_x += 130
    return "\n".join(parts) + "\n</svg>\n"


def write_plots(figures, folder):
    """launches.svg and memory.svg, each if there is something to draw."""
    for name, row, title, y_title, scale, counts in (
        ("launches", "storm", "Dependent launches a second", "million launches/s, all clients", 1e-6, (1, 2, 4, 8, 14, 28, 46)),
        ("memory", "memory", "GPU memory in use", "GiB", 1, (1, 12, 48, 128, 256)),
    ):
        series = {}
        for side in COLOURS:
            points = [(count, figures.value(side, f"{row}{count}")) for count in counts]
            points = [(count, value * scale) for count, value in points if value is not None]
            if points:
                series[side] = points
        if series:
            (folder / f"{name}.svg").write_text(line_chart(title, y_title, series))
