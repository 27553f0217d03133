// The trade-off explorer: points, two lines to drag, and the table of what they choose. All text is set as text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("page-data").textContent);
  const methods = data.methods;
  const $ = (id) => document.getElementById(id);
  const plot = $("plot");
  if (!methods.length) return;
  $("explore").hidden = false;
  const state = { min_performance: data.goal.min_performance, max_gap: data.goal.max_gap };
  const run = { ...state };
  const parked = { min_performance: state.min_performance ?? 0.5, max_gap: state.max_gap ?? 0.05 }; // where a line stands when it is switched on
  let shown = null; // [method, point]

  const minus = (text) => (/[1-9]/.test(text) ? text.replace("-", "−") : text.replace(/[-+]/, ""));
  const percent = (v) => `${minus((100 * v).toFixed(1))}%`;
  const points = (v) => minus(`${v > 0 ? "+" : ""}${(100 * v).toFixed(1)}`);
  const cut = (v) => (v === null ? "—" : minus(v.toFixed(3)));

  const PAPER = 560; // the width of the figure on paper, so that its letters are as large as on the screen
  const shape = (kind, x, y, r) => {
    if (kind === 1) return `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`;
    if (kind === 2) return `M${x} ${y - 1.25 * r}l${1.2 * r} ${2.1 * r}h${-2.4 * r}z`;
    if (kind === 3) return `M${x} ${y - 1.35 * r}l${1.35 * r} ${1.35 * r}l${-1.35 * r} ${1.35 * r}l${-1.35 * r} ${-1.35 * r}z`;
    return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
  };

  // The ranges hold every point that is drawn and the goal's lines, with air around them.
  let widest = Math.max(0.06, run.max_gap ?? 0), lowest = run.min_performance ?? 1, highest = run.min_performance ?? 0;
  const best = data.limit; // of the upper bound (group-aware)
  if (best) highest = Math.max(highest, ...best.performance);
  for (const m of methods) m.gap.forEach((g, i) => {
    if (!m.drawn[i]) return;
    widest = Math.max(widest, Math.abs(g));
    lowest = Math.min(lowest, m.performance[i]);
    highest = Math.max(highest, m.performance[i]);
  });
  const nice = (span) => [0.01, 0.02, 0.05, 0.1, 0.2, 0.25].find((s) => span / s <= 6) ?? 0.25;
  const xStep = nice(widest), yStep = nice(highest - lowest || 0.05);
  const xMax = Math.min(1, widest * 1.06);
  const yMin = Math.max(0, lowest - 0.25 * yStep), yMax = Math.min(1, highest + 0.4 * yStep);
  const limits = { min_performance: [yMin, yMax], max_gap: [0, xMax] };

  let geometry, parts;
  const tip = document.createElement("div");
  tip.className = "tip"; tip.hidden = true;

  function draw(wanted = plot.clientWidth) {
    const width = Math.max(280, wanted || 640);
    const height = Math.round(Math.min(430, Math.max(300, width * 0.56)));
    const box = { left: 60, right: width - 14, top: 14, bottom: height - 42 };
    const inset = 14; // so that a point without a difference does not hide the axis
    geometry = {
      x: (v) => box.left + inset + (box.right - box.left - inset) * v / xMax,
      y: (v) => box.bottom - (box.bottom - box.top) * (v - yMin) / (yMax - yMin),
      max_gap: (x) => (x - box.left - inset) / (box.right - box.left - inset) * xMax,
      min_performance: (y) => yMin + (box.bottom - y) / (box.bottom - box.top) * (yMax - yMin),
      box, width,
    };
    plot.replaceChildren();
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, width, height }, plot);
    plot.appendChild(tip);
    const grid = make("g", { class: "grid" }, svg);
    for (let v = 0; v <= xMax + 1e-9; v += xStep) {
      const x = geometry.x(v);
      make("line", { x1: x, x2: x, y1: box.top, y2: box.bottom }, grid);
      make("text", { x, y: box.bottom + 17, "text-anchor": "middle" }, svg, (100 * v).toFixed(0));
    }
    for (let v = Math.ceil(yMin / yStep - 1e-9) * yStep; v <= yMax + 1e-9; v += yStep) {
      const y = geometry.y(v);
      make("line", { x1: box.left, x2: box.right, y1: y, y2: y }, grid);
      make("text", { x: box.left - 7, y: y + 4, "text-anchor": "end" }, svg, `${(100 * v).toFixed(0)}%`);
    }
    make("text", { class: "title", x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, svg, "size of the difference, points");
    make("text", { class: "title", transform: `translate(11 ${(box.top + box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, svg, data.goal.performance);

    const shades = { min_performance: make("rect", { class: "shade" }, svg), max_gap: make("rect", { class: "shade" }, svg) };
    if (best) {
      const d = best.gap.map((g, i) => `${i ? "L" : "M"}${geometry.x(Math.min(g, xMax)).toFixed(1)} ${geometry.y(best.performance[i]).toFixed(1)}`).join("");
      make("title", {}, make("path", { class: "best", d }, svg), "upper bound (group-aware)");
    }
    methods.forEach((m, k) => {
      const dots = make("g", { class: "points", style: `--c: var(--g${k % 7})` }, svg);
      // One path per method, which stays quick with thousands of points.
      const d = m.gap.map((g, i) => (m.drawn[i] ? shape(k % 4, +geometry.x(Math.abs(g)).toFixed(1), +geometry.y(m.performance[i]).toFixed(1), 3) : "")).join("");
      make("path", { d }, dots);
    });
    parts = { shades, rings: [], now: [], lines: {} };
    methods.forEach((m, k) => {
      const colour = `--c: var(--g${k % 7})`;
      parts.rings.push(make("path", { class: "ring", style: colour, d: shape(k % 4, geometry.x(Math.abs(m.gap[m.chosen])), geometry.y(m.performance[m.chosen]), 9) }, svg));
      parts.now.push(make("path", { class: "now", style: colour, "data-method": k }, svg));
    });
    parts.shown = make("path", { class: "shown-step", d: "" }, svg);
    parts.lines.min_performance = handle("min_performance", "minimum performance", "vertical", svg);
    parts.lines.max_gap = handle("max_gap", "maximum size of the difference", "horizontal", svg);
    svg.addEventListener("pointermove", hover);
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
    update();
  }

  function handle(which, label, orientation, svg) {
    const group = make("g", { class: `handle ${which === "max_gap" ? "upright" : "level"}`, id: `line-${which}`, role: "slider", tabindex: 0, "aria-label": label, "aria-orientation": orientation }, svg);
    make("line", { class: "grab" }, group); make("line", { class: "seen" }, group);
    make("circle", { class: "knob", r: 7 }, group); make("text", {}, group);
    group.addEventListener("pointerdown", (event) => {
      event.preventDefault(); group.focus(); group.setPointerCapture(event.pointerId);
      tip.hidden = true;
    });
    group.addEventListener("pointermove", (event) => {
      if (!group.hasPointerCapture(event.pointerId)) return;
      const area = plot.getBoundingClientRect(), scale = geometry.width / area.width;
      move(which, which === "min_performance" ? geometry.min_performance((event.clientY - area.top) * scale) : geometry.max_gap((event.clientX - area.left) * scale));
    });
    group.addEventListener("keydown", (event) => {
      const step = { ArrowUp: 0.005, ArrowRight: 0.005, ArrowDown: -0.005, ArrowLeft: -0.005, PageUp: 0.05, PageDown: -0.05 }[event.key];
      if (step) move(which, Math.round((state[which] + step) * 1000) / 1000);
      else if (event.key === "Home") move(which, limits[which][0]);
      else if (event.key === "End") move(which, limits[which][1]);
      else return;
      event.preventDefault();
    });
    return group;
  }

  function move(which, value) {
    const [low, high] = limits[which];
    state[which] = Math.min(high, Math.max(low, value));
    parked[which] = state[which];
    update();
  }

  function place(which) {
    const { box } = geometry, line = parts.lines[which], value = state[which], shade = parts.shades[which];
    line.classList.toggle("off", value === null);
    if (value === null) { line.removeAttribute("tabindex"); line.setAttribute("aria-hidden", "true"); shade.setAttribute("width", 0); return; }
    line.setAttribute("tabindex", 0); line.removeAttribute("aria-hidden");
    const shown = Math.min(limits[which][1], Math.max(limits[which][0], value));
    const level = which === "min_performance", at = level ? geometry.y(shown) : geometry.x(shown);
    for (const stroke of line.querySelectorAll("line")) {
      const ends = level ? { x1: box.left, x2: box.right, y1: at, y2: at } : { x1: at, x2: at, y1: box.top, y2: box.bottom };
      for (const [key, v] of Object.entries(ends)) stroke.setAttribute(key, v);
    }
    const knob = line.querySelector("circle"), text = line.querySelector("text");
    knob.setAttribute("cx", level ? box.right - 4 : at); knob.setAttribute("cy", level ? at : box.top + 4);
    const near = !level && at > (box.left + box.right) / 2;
    text.setAttribute("x", level ? box.right - 18 : at + (near ? -13 : 13)); text.setAttribute("y", level ? at - 7 : box.top + 9);
    text.setAttribute("text-anchor", level || near ? "end" : "start");
    text.textContent = level ? `minimum ${percent(value)}` : `maximum ${(100 * value).toFixed(1)}`;
    const cover = level ? { x: box.left, y: at, width: box.right - box.left, height: box.bottom - at } : { x: at, y: box.top, width: box.right - at, height: box.bottom - box.top };
    for (const [key, v] of Object.entries(cover)) shade.setAttribute(key, Math.max(0, v));
    line.setAttribute("aria-valuemin", (100 * limits[which][0]).toFixed(1)); line.setAttribute("aria-valuemax", (100 * limits[which][1]).toFixed(1));
    line.setAttribute("aria-valuenow", (100 * value).toFixed(1));
    line.setAttribute("aria-valuetext", level ? `${percent(value)} ${data.goal.performance}` : `${(100 * value).toFixed(1)} percentage points`);
  }

  function update() {
    place("min_performance"); place("max_gap");
    for (const which of ["min_performance", "max_gap"]) {
      const on = state[which] !== null, other = which === "min_performance" ? "max_gap" : "min_performance";
      $(`use-${which}`).checked = on;
      $(`use-${which}`).disabled = on && state[other] === null; // one of them is needed
      $(which).disabled = !on;
      if (document.activeElement !== $(which)) $(which).value = (100 * (on ? state[which] : parked[which])).toFixed(1);
    }
    const asRun = state.min_performance === run.min_performance && state.max_gap === run.max_gap;
    let met = 0, best = null;
    methods.forEach((m, k) => {
      // At the run's own goal the run's own choice stands, also of methods that choose by a rule of theirs.
      const found = asRun && m.own_rule ? { row: m.chosen, met: m.met } : select(m.gap, m.performance, state.min_performance, state.max_gap);
      const { row } = found;
      parts.now[k].setAttribute("d", shape(k % 4, geometry.x(Math.abs(m.gap[row])), geometry.y(m.performance[row]), 6));
      parts.now[k].dataset.step = m.steps[row];
      const line = document.querySelectorAll("#choices tbody tr")[k];
      const values = [m.steps[row].toLocaleString("en"), points(m.gap[row]), percent(m.performance[row]), cut(m.threshold[row]), found.met ? "yes" : "no", versus(m, row)];
      line.querySelectorAll("td").forEach((cell, i) => { cell.textContent = values[i]; });
      line.classList.toggle("moved", row !== m.chosen);
      if (found.met) {
        met += 1;
        const beats = best && (state.min_performance === null ? m.performance[row] > best.performance : Math.abs(m.gap[row]) < Math.abs(best.gap));
        if (!best || beats) best = { name: m.name, gap: m.gap[row], performance: m.performance[row], step: m.steps[row] };
      }
    });
    const wish = [
      state.min_performance !== null ? `${data.goal.performance} of at least ${percent(state.min_performance)}` : null,
      state.max_gap !== null ? `a difference within ${(100 * state.max_gap).toFixed(1)} points` : null,
    ].filter(Boolean).join(" and ");
    $("explorer-says").textContent = `With ${wish}: ${met} of ${methods.length} methods reach it on the repair set, the patients they were fitted to.` +
      (best ? ` The ${state.min_performance === null ? "best performance" : "smallest difference"} is that of ${best.name} at step ${best.step.toLocaleString("en")}: ${points(best.gap)} points with ${percent(best.performance)}.` : "");
  }

  // How far a step is from the upper bound (group-aware), at the same size of the difference.
  const versus = (m, i) => {
    const below = m.limit && m.limit[i] !== null ? m.limit[i] - m.performance[i] : null;
    if (below === null) return "—";
    return Math.abs(below) < 5e-4 ? "at it" : `${(100 * Math.abs(below)).toFixed(1)} ${below > 0 ? "below" : "above"}`;
  };
  const within = (half) => (half === null ? "" : ` (± ${(100 * half).toFixed(1)} at most)`);
  const describe = (m, i) => `${m.name}, step ${m.steps[i].toLocaleString("en")}: difference ${points(m.gap[i])} points${within(data.margin.gap)}, ${data.goal.performance} ${percent(m.performance[i])}${within(data.margin.performance)}, threshold ${cut(m.threshold[i])}`;

  function show(k, i) {
    const m = methods[k];
    shown = [k, i];
    parts.shown.setAttribute("d", shape(k % 4, geometry.x(Math.abs(m.gap[i])), geometry.y(m.performance[i]), 5.5));
    $("walk-method").value = k; $("walk").max = m.gap.length - 1; $("walk").value = i;
    $("walk").setAttribute("aria-valuetext", describe(m, i));
    $("walk-says").textContent = describe(m, i);
  }

  function hover(event) {
    if (event.buttons || event.target.closest?.(".handle")) { tip.hidden = true; return; }
    const area = plot.getBoundingClientRect(), scale = geometry.width / area.width;
    const x = (event.clientX - area.left) * scale, y = (event.clientY - area.top) * scale;
    let nearest = 18 * 18, at = null;
    methods.forEach((m, k) => m.gap.forEach((g, i) => {
      if (!m.drawn[i]) return;
      const away = (geometry.x(Math.abs(g)) - x) ** 2 + (geometry.y(m.performance[i]) - y) ** 2;
      if (away < nearest) { nearest = away; at = [k, i]; }
    }));
    tip.hidden = !at;
    if (!at) return;
    show(...at);
    tip.textContent = describe(methods[at[0]], at[1]);
    const left = (event.clientX - area.left) + 14;
    tip.style.left = `${Math.min(left, area.width - tip.offsetWidth - 4)}px`;
    tip.style.top = `${event.clientY - area.top + 16}px`;
  }

  methods.forEach((m, k) => {
    const option = document.createElement("option");
    option.value = k; option.textContent = m.name;
    $("walk-method").appendChild(option);
    const item = document.createElement("span");
    const sign = make("svg", { width: 14, height: 14, "aria-hidden": "true", style: `--c: var(--g${k % 7})` }, item);
    make("path", { d: shape(k % 4, 7, 7, 4.5), style: "fill: var(--c)" }, sign);
    const name = document.createElement("bdi");
    name.textContent = m.name; item.appendChild(name); $("legend").appendChild(item);
  });
  if (best) {
    const item = document.createElement("span");
    const sign = make("svg", { width: 26, height: 10, "aria-hidden": "true", class: "best-key" }, item);
    make("path", { class: "best", d: "M1 5h24" }, sign);
    item.append("upper bound (group-aware)");
    $("legend").appendChild(item);
  }
  const rest = document.createElement("span");
  rest.textContent = "large: chosen with these lines; outlined: chosen in this run";
  $("legend").appendChild(rest);

  for (const which of ["min_performance", "max_gap"]) {
    $(`use-${which}`).addEventListener("change", (event) => { state[which] = event.target.checked ? parked[which] : null; update(); });
    $(which).addEventListener("input", (event) => { if (event.target.value !== "" && Number.isFinite(+event.target.value)) { state[which] = parked[which] = Math.min(1, Math.max(0, +event.target.value / 100)); update(); } });
    $(which).addEventListener("blur", update);
  }
  $("reset").addEventListener("click", () => { Object.assign(state, run); update(); });
  $("walk-method").addEventListener("change", (event) => show(+event.target.value, methods[+event.target.value].chosen));
  $("walk").addEventListener("input", (event) => show(+$("walk-method").value, +event.target.value));

  draw();
  show(methods.findIndex((m) => m.result), methods.find((m) => m.result).chosen);
  parts.shown.setAttribute("d", ""); // the marks of the choice stand there already
  let drawn = plot.clientWidth;
  const redraw = () => { if (plot.clientWidth && plot.clientWidth !== drawn) { drawn = plot.clientWidth; draw(); if (shown) show(...shown); } };
  addEventListener("resize", redraw);
  plot.closest("details")?.addEventListener("toggle", redraw); // folded, it has no width
  addEventListener("beforeprint", () => draw(PAPER));
  addEventListener("afterprint", () => draw());
  globalThis.equipoise = { select, data };
})();
