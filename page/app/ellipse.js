// Diffusion tensors as ellipses, one for each scale: the axes are the diffusivities.

export function drawEllipses(canvas, { angle, scales }) {
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  const ink = getComputedStyle(canvas).getPropertyValue("--ink") || "#333";
  const accent = getComputedStyle(canvas).getPropertyValue("--accent") || "#1f5f7a";
  context.clearRect(0, 0, width, height);
  const columns = Math.min(scales.length, 4);
  const rows = Math.ceil(scales.length / columns);
  const [w, h] = [width / columns, height / rows];
  const radius = Math.min(w, h - 14) / 2 - 4;
  context.textAlign = "center";
  context.font = "10px system-ui, sans-serif";
  scales.forEach(({ scale, across, along }, k) => {
    const [x, y] = [(k % columns) * w + w / 2, Math.floor(k / columns) * h + (h - 12) / 2];
    context.strokeStyle = ink;
    context.globalAlpha = 0.18;
    context.lineWidth = 1;
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.stroke();
    context.globalAlpha = 1;
    context.fillStyle = accent;
    context.beginPath();
    context.ellipse(
      x,
      y,
      Math.max(across * radius, 1),
      Math.max(along * radius, 1),
      angle,
      0,
      2 * Math.PI,
    );
    context.fill();
    context.fillStyle = ink;
    context.fillText(`${Number(scale.toPrecision(2))} px`, x, y + radius + 13);
  });
}
