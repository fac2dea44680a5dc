// The values of a chart under the pointer. The lines are in the page; their scale is in data-x, data-y.
"use strict";
for (const chart of document.querySelectorAll("svg.chart[data-x]")) {
  const readout = chart.parentElement.querySelector(".readout");
  const axis = (text) => {
    const [low, high, start, end] = text.split(" ").map(Number);
    return (place) => low + ((place - start) / (end - start)) * (high - low);
  };
  const x = axis(chart.dataset.x), y = axis(chart.dataset.y);
  const lines = [...chart.querySelectorAll("polyline")].map((line) => ({
    name: line.dataset.name,
    points: line.getAttribute("points").split(" ").map((pair) => pair.split(",").map(Number)),
  }));
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
  cursor.setAttribute("class", "cursor");
  chart.append(cursor);
  const number = (value) => Number(value.toPrecision(3)).toString().replace("-", "−");
  chart.addEventListener("pointermove", (event) => {
    if (!lines.length) return;
    const box = chart.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
    const nearest = (points) =>
      points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best));
    const found = lines.map((line) => [line.name, nearest(line.points)]);
    cursor.setAttribute("d", `M${found[0][1][0]} 10V${chart.viewBox.baseVal.height - 36}`);
    const values = found.map(([name, point]) => (lines.length > 1 ? `${name} ` : "") + number(y(point[1])));
    readout.textContent = `${chart.dataset.across} ${number(x(found[0][1][0]))}: ${values.join(" · ")}`;
  });
  chart.addEventListener("pointerleave", () => {
    cursor.removeAttribute("d");
    readout.textContent = "";
  });
}
// Open all details before printing.
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
