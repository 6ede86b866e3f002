"""The plot: every guard as one line, the measured value as a part of it, and the aim as a mark."""
from xml.sax.saxutils import escape

WIDTH, LABEL, RIGHT, ROW, TOP = 1130, 560, 170, 24, 64
GOOD, BAD, AIM, INK, FAINT = "#2a7f62", "#c0392b", "#2c5aa0", "#222", "#ccc"
#: The axis ends at this many times the guard; what is beyond is cut and says so.
END = 2.0


def place(x):
    return LABEL + (WIDTH - LABEL - RIGHT) * min(max(x, 0), END) / END


def against(check, x):
    """x on the axis: 1 is the guard. Ratios are shown as what they add, since
    1.05 is to be told from 1.10."""
    if check.unit == "×" and 1 < check.guard <= 1.5:
        return (x - 1) / (check.guard - 1)
    return x / check.guard


def text(x, y, words, anchor="start", size=12, fill=INK):
    return (f'<text x="{x:.0f}" y="{y:.0f}" font-family="sans-serif" font-size="{size}" '
            f'text-anchor="{anchor}" fill="{fill}">{escape(words)}</text>')


def line(x1, y1, x2, y2, stroke, width=1, dash=""):
    extra = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width}"{extra}/>'


def bar(check, y):
    colour = GOOD if check.holds else BAD
    at = against(check, check.value)
    parts = [text(LABEL - 8, y + 4, check.what, "end")]
    parts.append(f'<rect x="{place(0):.1f}" y="{y - 6:.1f}" width="{max(place(at) - place(0), 1):.1f}" height="12" fill="{colour}"/>')
    if at > END:
        tip = place(END)
        parts.append(f'<polygon points="{tip},{y - 9} {tip + 9},{y} {tip},{y + 9}" fill="{colour}"/>')
    elif check.low is not None:
        parts.append(line(place(against(check, check.low)), y, place(against(check, check.high)), y, INK, 1.5))
    if check.aim < check.guard:
        x = place(against(check, check.aim))
        parts.append(f'<polygon points="{x:.1f},{y - 10:.1f} {x + 5:.1f},{y:.1f} {x:.1f},{y + 10:.1f} {x - 5:.1f},{y:.1f}" fill="{AIM}"/>')
    sign = f"{check.number(check.value)}  (≤ {check.number(check.guard)})"
    parts.append(text(WIDTH - RIGHT + 18, y + 4, sign, size=11, fill=colour))
    return parts


def svg(checks, about):
    """All checks with a guard that is not 0."""
    checks = [c for c in checks if c.guard > 0]
    height = TOP + ROW * len(checks) + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
           f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
           text(16, 24, "regall: what was measured, against the bound that guards it", size=16),
           text(16, 42, "Left edge: no cost at all. Dashed line: the guard. Thin line: 95 % interval. Diamond: an aim that is less than the guard. An arrow: beyond the picture.", size=11)]
    bottom = TOP + ROW * len(checks)
    for x in (0, 0.5, 1.5, 2):
        out.append(line(place(x), TOP - 8, place(x), bottom, FAINT))
    for i, c in enumerate(checks):
        out += bar(c, TOP + ROW * i + ROW / 2)
    out.append(line(place(1), TOP - 8, place(1), bottom, INK, 1.5, "4 3"))
    out.append(text(place(1), bottom + 16, "guard", "middle", 11))
    out.append(text(16, height - 10, f"{about['date']}, {about['commit']}, Linux {about['kernel']}, {about['cpu']}", size=10, fill="#666"))
    out.append("</svg>")
    return "\n".join(out) + "\n"
