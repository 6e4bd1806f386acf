"""Draws the loss curves of an undisturbed and a disturbed run as an SVG, which is readable in dark mode, too."""

STYLE = """<style>
  .page { fill: #ffffff; stroke: #d0d7de; }
  text { font-family: -apple-system, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; font-size: 13px;
    fill: #1f2328; }
  .title { font-size: 15px; font-weight: 600; }
  .tick { fill: #59636e; }
  .grid { stroke: #d1d9e0; }
  .undisturbed { fill: none; stroke: #8cb8e8; stroke-width: 6; stroke-linejoin: round; }
  .disturbed { fill: none; stroke: #0550ae; stroke-width: 1.5; }
  .fault { stroke: #bc4c00; stroke-width: 2; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #3d444d; }
    text { fill: #f0f6fc; }
    .tick { fill: #9198a1; }
    .grid { stroke: #3d444d; }
    .undisturbed { stroke: #1f4a78; }
    .disturbed { stroke: #79c0ff; }
    .fault { stroke: #ffa657; }
  }
</style>"""


def figure(runs, faults):
    """Returns an SVG with the training losses of (name, class, losses), and marks for faults."""
    width, height, left, top, right, bottom = 760, 330, 64, 44, 20, 44
    steps = [[(step, loss) for mode, step, loss in losses if mode == "train"] for _, _, losses in runs]
    curves = [(name, style, curve) for (name, style, _), curve in zip(runs, steps, strict=True)]
    last = max(step for _, _, curve in curves for step, _ in curve)
    high = max(loss for _, _, curve in curves for _, loss in curve)
    low = min(loss for _, _, curve in curves for _, loss in curve)

    def x(step):
        return left + (width - left - right) * step / last

    def y(loss):
        return top + (height - top - bottom) * (high - loss) / (high - low)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">', STYLE]
    parts.append(f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>')
    title = f"Training loss, undisturbed and with {len(faults)} faults"
    parts.append(f'<text class="title" x="{left}" y="27">{title}</text>')
    for tick in range(int(low) + 1, int(high) + 1):
        parts.append(f'<path class="grid" d="M{left} {y(tick):.1f}H{width - right}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{left - 8}" y="{y(tick) + 4:.1f}">{tick}</text>')
    for step in range(0, last + 1, 50):
        parts.append(f'<text class="tick" text-anchor="middle" x="{x(step):.1f}" y="{height - 14}">{step}</text>')
    for _, style, curve in curves:
        points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in curve)
        parts.append(f'<polyline class="{style}" points="{points}"/>')
    for fault in faults:
        at = f"{fault.agent} at step {fault.step}: {fault.kind}"
        parts.append(f'<path class="fault" d="M{x(fault.step):.1f} {height - bottom}v-10"><title>{at}</title></path>')
    for at, (name, style, _) in enumerate(curves):
        parts.append(f'<path class="{style}" d="M{width - 220} {60 + 20 * at}h28"/>')
        parts.append(f'<text x="{width - 184}" y="{64 + 20 * at}">{name}</text>')
    parts.append(f'<path class="fault" d="M{width - 206} {105}v-10"/><text x="{width - 184}" y="104">a fault</text>')
    return "\n".join([*parts, "</svg>", ""])
