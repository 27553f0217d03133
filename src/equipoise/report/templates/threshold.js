// The threshold slider: rates of each group at a threshold, from how many rows lie at or above each. Text is set as text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("page-data").textContent).threshold;
  const $ = (id) => document.getElementById(id);
  if (!data || !$("move")) return;
  $("move").hidden = false;
  const positions = data.positions;
  const shown = (v) => String(+v.toPrecision(4));
  // [low, high] of the rows at or above a threshold: both ends are the same where it is one of the known ones, or nothing lies between.
  const above = (cell, at) => {
    if (!cell) return null;
    const [cuts, rows] = cell;
    let k = 0;
    while (k + 1 < cuts.length && cuts[k + 1] <= at) k++;
    return cuts[k] === at ? [rows[k], rows[k]] : [k + 1 < rows.length ? rows[k + 1] : 0, rows[k]];
  };
  const rates = (group, at) => {
    const [tp, fp] = ["1", "0"].map((label) => above(group.cells[label], at));
    const [p, n] = ["1", "0"].map((label) => (group.cells[label] ? group.cells[label][1][0] : null));
    const share = (part, all) => (part === null ? null : part.map((v) => v / all));
    const tpr = share(tp, p), fpr = share(fp, n);
    const both = tp !== null && fp !== null;
    return {
      flagged: both ? [(tp[0] + fp[0]) / (p + n), (tp[1] + fp[1]) / (p + n)] : null,
      tpr,
      tnr: fpr && [1 - fpr[1], 1 - fpr[0]],
      ppv: both && tp[1] + fp[0] > 0 && tp[0] + fp[1] > 0 ? [tp[0] / (tp[0] + fp[1] || 1), tp[1] / (tp[1] + fp[0] || 1)] : null,
      missed: tpr && [1 - tpr[1], 1 - tpr[0]],
      alarms: fpr,
    };
  };
  const said = (range, scale, digits, sign) => {
    if (range === null) return "—";
    const [low, high] = range.map((v) => (scale * v).toFixed(digits));
    return low === high ? low + sign : `${low}–${high}${sign}`;
  };
  const percent = (range) => said(range, 100, 1, "%");
  const thousand = (range) => said(range, 1000, 0, "");

  const box = { width: 320, height: 200, left: 44, right: 308, top: 10, bottom: 164 };
  const x = (v) => box.left + (box.right - box.left) * v;
  const y = (v) => box.bottom - (box.bottom - box.top) * v;
  let attribute = 0, cursors = [];
  const lowest = () => Number(positions.length > 0);

  const curve = (cell, turned) => {
    // Down in steps from all rows at 0; a step stands at the threshold from which it is known.
    const [cuts, rows] = cell, parts = [];
    cuts.forEach((cut, k) => parts.push(`${k ? "L" : "M"}${x(cut).toFixed(1)} ${y(turned ? 1 - rows[k] / rows[0] : rows[k] / rows[0]).toFixed(1)}`));
    parts.push(`L${x(1).toFixed(1)} ${y(turned ? 1 - rows[rows.length - 1] / rows[0] : rows[rows.length - 1] / rows[0]).toFixed(1)}`);
    return parts.join("");
  };
  function figures() {
    const place = $("move-figures"), groups = data.attributes[attribute].groups;
    place.replaceChildren(); cursors = [];
    for (const [title, label, turned] of [["Sensitivity", "1", false], ["Specificity", "0", true]]) {
      const figure = document.createElement("figure"), caption = document.createElement("figcaption");
      figure.className = "panel"; caption.textContent = `${title} at each threshold`;
      figure.appendChild(caption);
      const svg = make("svg", { viewBox: `0 0 ${box.width} ${box.height}`, role: "img", "aria-label": `${title} of each group at each threshold; the table has the values at this one` }, figure);
      const grid = make("g", { class: "grid" }, svg);
      for (const v of [0, 0.25, 0.5, 0.75, 1]) {
        make("line", { x1: box.left, x2: box.right, y1: y(v), y2: y(v) }, grid);
        make("text", { x: box.left - 5, y: y(v) + 3.5, "text-anchor": "end" }, svg, `${100 * v}%`);
        make("text", { x: x(v), y: box.bottom + 14, "text-anchor": "middle" }, svg, String(v));
      }
      make("text", { class: "title", x: (box.left + box.right) / 2, y: box.height - 4, "text-anchor": "middle" }, svg, "threshold");
      groups.forEach((group, k) => {
        if (group.cells[label]) make("path", { class: `curve g${k % 7}`, d: curve(group.cells[label], turned) }, svg);
      });
      cursors.push(make("line", { class: "cut", y1: box.top, y2: box.bottom }, svg));
      place.appendChild(figure);
    }
    $("move-key").replaceChildren(...groups.map((group, k) => {
      const item = document.createElement("li"), svg = make("svg", { width: 26, height: 10, "aria-hidden": "true" });
      make("line", { class: `curve g${k % 7}`, x1: 1, x2: 25, y1: 5, y2: 5 }, svg);
      item.append(svg, document.createElement("bdi"));
      item.lastChild.textContent = group.name;
      return item;
    }));
  }
  const gap = (a, b) => (a === null || b === null ? null : [a[0] - b[1], a[1] - b[0]]);
  const points = (range) => {
    const text = range.map((v) => `${v > 0.0005 ? "+" : ""}${(100 * v).toFixed(1)}`.replace(/^-0\.0$/, "0.0").replace("-", "−"));
    return text[0] === text[1] ? text[0] : `${text[0]} to ${text[1]}`;
  };
  function update() {
    const at = positions[+$("move-at").value];
    $("move-now").textContent = shown(at) + (at === data.used ? " (in use)" : "");
    $("move-at").setAttribute("aria-valuetext", shown(at));
    for (const line of cursors) { line.setAttribute("x1", x(at)); line.setAttribute("x2", x(at)); }
    const groups = data.attributes[attribute].groups, found = groups.map((group) => rates(group, at));
    $("move-rates").tBodies[0].replaceChildren(...groups.map((group, k) => {
      const row = document.createElement("tr"), head = document.createElement("th");
      head.scope = "row"; head.appendChild(document.createElement("bdi")).textContent = group.name;
      if (group.reference) { const tag = document.createElement("span"); tag.className = "tag"; tag.textContent = "reference"; head.append(" ", tag); }
      row.appendChild(head);
      const r = found[k];
      const cells = [["flagged", percent(r.flagged)], ["sensitivity", percent(r.tpr)], ["specificity", percent(r.tnr)], ["PPV", percent(r.ppv)], ["missed of 1,000 with", thousand(r.missed)], ["flagged of 1,000 without", thousand(r.alarms)]];
      for (const [name, text] of cells) { const cell = document.createElement("td"); cell.dataset.head = name; cell.textContent = text; row.appendChild(cell); }
      return row;
    }));
    const reference = groups.findIndex((group) => group.reference);
    const told = groups.flatMap((group, k) => {
      if (k === reference || reference < 0) return [];
      const parts = [["sensitivity", "tpr"], ["specificity", "tnr"]].map(([name, rate]) => [name, gap(found[k][rate], found[reference][rate])]).filter(([, range]) => range);
      return parts.length ? [`${group.name} minus ${groups[reference].name}: ${parts.map(([name, range]) => `${name} ${points(range)}`).join(", ")} points`] : [];
    });
    $("move-says").textContent = told.length > 6 ? "" : told.join(". ") + (told.length ? "." : "");
  }
  const nearest = (value) => positions.reduce((best, v, k) => (Math.abs(v - value) < Math.abs(positions[best] - value) ? k : best), 0);
  const back = () => { $("move-at").value = nearest(data.used ?? 0.5); update(); };
  data.attributes.forEach((each, k) => { const option = document.createElement("option"); option.value = k; option.textContent = each.name; $("move-attribute").appendChild(option); });
  $("move-attribute-label").hidden = data.attributes.length < 2;
  $("move-back").hidden = data.used === null;
  if (!lowest()) { $("move").hidden = true; return; }
  $("move-at").max = positions.length - 1;
  $("move-at").addEventListener("input", update);
  $("move-attribute").addEventListener("change", (event) => { attribute = +event.target.value; figures(); update(); });
  $("move-back").addEventListener("click", back);
  figures(); back();
  globalThis.equipoise = { ...globalThis.equipoise, ratesAt: (at) => data.attributes.map((each) => each.groups.map((group) => rates(group, at))) };
})();
