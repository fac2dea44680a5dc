// The map of embeddings: hover, keyboard, search, legend, zoom. Text goes in as text, never as HTML.
(() => {
  const source = document.getElementById("map-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const count = data.x.length;
  const $ = (id) => document.getElementById(id);
  const canvas = $("canvas"), tooltip = $("tooltip"), panel = $("panel"), status = $("status"), search = $("search");
  const pen = canvas.getContext("2d");
  const MARGIN = 28, REACH = 18, MOST_ZOOM = 60;
  const texts = data.names.map((name, i) =>
    `${name} ${data.labels ? data.classes[data.labels[i]] : ""}`.toLowerCase());
  const hidden = new Set();
  const matches = new Uint8Array(count).fill(1);
  const view = { zoom: 1, x: 0, y: 0 };
  let width = 0, height = 0, radius = 0, current = -1, queued = false, pictures = null;

  // --- what an item looks like
  const make = (tag, name, text) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const picture = (i) => {
    if (!pictures || !pictures[i]) return null;
    const image = make("img", data.style);
    image.alt = "";
    image.src = pictures[i];
    return image;
  };
  const describe = (i, into) => {
    if (data.labels) into.append(make("span", "label", data.classes[data.labels[i]]));
    into.append(make("span", "caption", data.names[i]));
  };
  const unpack = async () => {
    if (!data.pictures || !("DecompressionStream" in window)) return;
    const bytes = Uint8Array.from(atob(data.pictures), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    pictures = await new Response(stream).json();
  };

  // --- where it lies
  const span = (places) => places.reduce((most, place) => Math.max(most, place), 1);
  const spanX = span(data.x), spanY = span(data.y);
  const scale = () => Math.min((width - 2 * MARGIN) / spanX, (height - 2 * MARGIN) / spanY) * view.zoom;
  const placeX = (i, s) => width / 2 + (data.x[i] - spanX / 2) * s + view.x;
  const placeY = (i, s) => height / 2 - (data.y[i] - spanY / 2) * s + view.y;
  const active = (i) => matches[i] && !(data.labels && hidden.has(data.labels[i]));

  // --- drawing, class by class: one path and one fill each
  const groups = new Map();
  for (let i = 0; i < count; i++) {
    const label = data.labels ? data.labels[i] : 0;
    if (!groups.has(label)) groups.set(label, []);
    groups.get(label).push(i);
  }
  const mark = (label) => Math.floor(label / data.colors) % data.marks;
  const color = (label) => `--c${label % data.colors}`;
  const trace = (path, shape, x, y, r) => {
    if (shape === 0) {
      path.moveTo(x + r, y);
      path.arc(x, y, r, 0, 7);
    } else if (shape === 1) {
      path.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8);
    } else if (shape === 2) {
      path.moveTo(x, y - r * 1.2);
      path.lineTo(x + r * 1.15, y + r * 0.8);
      path.lineTo(x - r * 1.15, y + r * 0.8);
      path.closePath();
    } else {
      path.moveTo(x, y - r * 1.3);
      path.lineTo(x + r * 1.3, y);
      path.lineTo(x, y + r * 1.3);
      path.lineTo(x - r * 1.3, y);
      path.closePath();
    }
  };
  const draw = () => {
    queued = false;
    const s = scale(), style = getComputedStyle(document.documentElement);
    pen.clearRect(0, 0, width, height);
    for (const [label, members] of groups) {
      if (data.labels && hidden.has(label)) continue;
      const paths = [new Path2D(), new Path2D()];
      for (const i of members) trace(paths[matches[i]], mark(label), placeX(i, s), placeY(i, s), radius);
      pen.fillStyle = style.getPropertyValue(color(label));
      pen.globalAlpha = 0.1;
      pen.fill(paths[0]);
      pen.globalAlpha = 0.82;
      pen.fill(paths[1]);
    }
    pen.globalAlpha = 1;
    if (current < 0) return;
    pen.strokeStyle = style.getPropertyValue("--ink");
    const ring = (i, r, lineWidth) => {
      pen.lineWidth = lineWidth;
      pen.beginPath();
      pen.arc(placeX(i, s), placeY(i, s), r, 0, 7);
      pen.stroke();
    };
    ring(current, radius + 4, 2);
    if (panel.firstChild) for (const near of data.near[current]) ring(near, radius + 2, 1);
  };
  const redraw = () => {
    if (!queued) requestAnimationFrame(draw);
    queued = true;
  };
  const fit = () => {
    const box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    width = box.width;
    height = box.height;
    radius = Math.max(2, Math.min(5, 0.18 * Math.sqrt((width * height) / count)));
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    redraw();
  };

  // --- one item in view
  const near = (x, y, reach) => {
    const s = scale();
    let best = -1, least = reach * reach;
    for (let i = 0; i < count; i++) {
      if (!active(i)) continue;
      const dx = placeX(i, s) - x, dy = placeY(i, s) - y, d = dx * dx + dy * dy;
      if (d < least) [best, least] = [i, d];
    }
    return best;
  };
  const show = (i) => {
    if (i === current && !tooltip.hidden) return;
    current = i;
    tooltip.hidden = i < 0;
    redraw();
    if (i < 0) return;
    const seen = picture(i);
    tooltip.replaceChildren(...(seen ? [seen] : []));
    describe(i, tooltip);
    const s = scale(), x = placeX(i, s), y = placeY(i, s);
    const left = Math.min(Math.max(4, x + 14), width - tooltip.offsetWidth - 4);
    const above = y - tooltip.offsetHeight - 14;
    tooltip.style.left = `${Math.max(4, left)}px`;
    tooltip.style.top = `${above > 4 ? above : y + 14}px`;
  };
  const announce = (i) => {
    status.textContent = data.names[i] + (data.labels ? `, ${data.classes[data.labels[i]]}` : "");
  };
  const pin = (i) => {
    panel.replaceChildren();
    panel.className = pictures ? "" : "texts";
    if (i >= 0) {
      const head = make("div", panel.className ? "head texts" : "head"), words = make("div");
      const seen = picture(i);
      if (seen) head.append(seen);
      else head.className = "head texts";
      describe(i, words);
      head.append(words);
      const list = make("ol");
      data.near[i].forEach((other, rank) => {
        const button = make("button");
        button.type = "button";
        const looks = picture(other);
        const label = data.labels ? ` · ${data.classes[data.labels[other]]}` : "";
        button.setAttribute("aria-label", `${data.names[other]}${label}, cosine ${data.cosines[i][rank]}`);
        button.append(looks || make("span", "caption", data.names[other]));
        button.append(make("span", "small", `${data.cosines[i][rank].toFixed(2)}${label}`));
        button.addEventListener("click", () => go(other));
        const entry = make("li");
        entry.append(button);
        list.append(entry);
      });
      panel.append(head, list);
    }
    redraw();
  };
  const go = (i) => {
    // Bring it into view where zooming has left it outside.
    const s = scale(), x = placeX(i, s), y = placeY(i, s);
    if (x < 0 || y < 0 || x > width || y > height) {
      view.x += width / 2 - x;
      view.y += height / 2 - y;
    }
    current = -1;
    show(i);
    pin(i);
    announce(i);
  };

  // --- zoom
  const clamp = () => {
    if (view.zoom <= 1) Object.assign(view, { zoom: 1, x: 0, y: 0 });
    canvas.classList.toggle("zoomed", view.zoom > 1);
    show(-1);
    redraw();
  };
  const zoom = (factor, x = width / 2, y = height / 2) => {
    const wanted = factor ? Math.min(MOST_ZOOM, Math.max(1, view.zoom * factor)) : 1;
    const ratio = wanted / view.zoom;
    view.x = x - width / 2 - (x - width / 2 - view.x) * ratio;
    view.y = y - height / 2 - (y - height / 2 - view.y) * ratio;
    view.zoom = wanted;
    clamp();
  };
  for (const button of document.querySelectorAll("[data-zoom]"))
    button.addEventListener("click", () => zoom(Number(button.dataset.zoom)));

  // --- pointer
  let grip = null;
  canvas.addEventListener("pointerdown", (event) => {
    grip = { x: event.clientX, y: event.clientY, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (grip && event.buttons && view.zoom > 1) {
      const dx = event.clientX - grip.x, dy = event.clientY - grip.y;
      if (grip.moved || Math.hypot(dx, dy) > 4) {
        Object.assign(grip, { x: event.clientX, y: event.clientY, moved: true });
        view.x += dx;
        view.y += dy;
        clamp();
        return;
      }
    }
    show(near(event.offsetX, event.offsetY, REACH));
  });
  canvas.addEventListener("pointerup", (event) => {
    if (grip && !grip.moved) {
      const i = near(event.offsetX, event.offsetY, REACH * 1.5);
      if (i >= 0) go(i);
      else {
        show(-1);
        pin(-1);
      }
    }
    grip = null;
  });
  canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") show(-1);
  });
  canvas.addEventListener("dblclick", (event) => zoom(2, event.offsetX, event.offsetY));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && view.zoom === 1) return; // the page scrolls until the map was zoomed
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
  }, { passive: false });

  // --- keyboard
  const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const step = ([dx, dy]) => {
    const s = scale();
    if (current < 0 || !active(current)) return near(width / 2, height / 2, Infinity);
    const x = placeX(current, s), y = placeY(current, s);
    let best = current, least = Infinity;
    for (let i = 0; i < count; i++) {
      if (i === current || !active(i)) continue;
      const px = placeX(i, s) - x, py = placeY(i, s) - y, ahead = px * dx + py * dy, aside = Math.abs(px * dy - py * dx);
      // Within 60 degrees of the arrow; what lies straight ahead is closer than what lies aside.
      if (ahead <= 0 || aside > 1.8 * ahead) continue;
      const cost = ahead + 2 * aside;
      if (cost < least) [best, least] = [i, cost];
    }
    return best;
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.key in DIRECTIONS) {
      const i = step(DIRECTIONS[event.key]);
      if (i >= 0) {
        current = -1;
        show(i);
        announce(i);
      }
    } else if ((event.key === "Enter" || event.key === " ") && current >= 0) go(current);
    else if (event.key === "+" || event.key === "=") zoom(1.5);
    else if (event.key === "-") zoom(1 / 1.5);
    else if (event.key === "0") zoom(0);
    else if (event.key === "Escape") {
      show(-1);
      pin(-1);
    } else return;
    event.preventDefault();
  });

  // --- search and legend
  const tally = () => {
    let seen = 0;
    for (let i = 0; i < count; i++) seen += active(i) ? 1 : 0;
    status.textContent = seen === count ? "" : `${seen.toLocaleString("en")} of ${count.toLocaleString("en")} items`;
    if (current >= 0 && !active(current)) show(-1);
    redraw();
  };
  search.addEventListener("input", () => {
    const wanted = search.value.trim().toLowerCase();
    for (let i = 0; i < count; i++) matches[i] = texts[i].includes(wanted) ? 1 : 0;
    tally();
  });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    for (let k = 1; k <= count; k++) {
      const i = (Math.max(current, -1) + k) % count;
      if (active(i)) return go(i);
    }
  });
  if (data.labels) {
    const legend = $("legend"), all = $("all"), buttons = [];
    const press = () => {
      buttons.forEach((button, label) => button.setAttribute("aria-pressed", String(!hidden.has(label))));
      all.textContent = hidden.size ? "show all" : "hide all";
      tally();
    };
    data.classes.forEach((name, label) => {
      const button = make("button");
      button.type = "button";
      const swatch = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      swatch.setAttribute("viewBox", "-6 -6 12 12");
      swatch.setAttribute("aria-hidden", "true");
      const shape = document.createElementNS("http://www.w3.org/2000/svg", "path");
      shape.setAttribute("d", ["M4.5 0A4.5 4.5 0 1 1-4.5 0A4.5 4.5 0 1 1 4.5 0", "M-4-4H4V4H-4Z", "M0-5L5 4H-5Z", "M0-5.5L5.5 0L0 5.5L-5.5 0Z"][mark(label)]);
      shape.style.fill = `var(${color(label)})`;
      swatch.append(shape);
      button.append(swatch, make("span", "", name), make("span", "count", groups.get(label).length.toLocaleString("en")));
      button.addEventListener("click", () => {
        if (!hidden.delete(label)) hidden.add(label);
        press();
      });
      buttons.push(button);
      const entry = make("li");
      entry.append(button);
      legend.append(entry);
    });
    all.addEventListener("click", () => {
      if (hidden.size) hidden.clear();
      else data.classes.forEach((_, label) => hidden.add(label));
      press();
    });
    press();
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new ResizeObserver(fit).observe(canvas);
  fit();
  unpack();
})();
