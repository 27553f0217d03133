// Every group and intersection by one rate, sorted and filtered. Text is set as text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("page-data").textContent).subgroups;
  const $ = (id) => document.getElementById(id);
  if (!data || !$("explore-groups")) return;
  $("explore-groups").hidden = false;
  const MOST = 100; // rows drawn
  const option = (select, value, text) => { const one = document.createElement("option"); one.value = value; one.textContent = text; select.appendChild(one); };
  data.measures.forEach((measure, k) => option($("group-measure"), k, measure.name));
  const start = data.measures.findIndex((measure) => measure.name === "Sensitivity");
  $("group-measure").value = Math.max(start, 0);
  option($("group-attribute"), "", "all attributes");
  for (const name of new Set(data.groups.map((group) => group.attribute))) option($("group-attribute"), name, name);
  const minus = (text) => (/[1-9]/.test(text) ? text.replace("-", "−") : text.replace(/[-+]/, ""));
  const amount = (v, kind) => {
    if (kind === "share") return `${minus((100 * v).toFixed(1))}%`;
    if (kind === "area") return minus(v.toFixed(3));
    if (kind === "number" || kind === "signed") return minus(`${kind === "signed" && v > 0 ? "+" : ""}${v.toFixed(2)}`);
    return minus(`${kind === "points" && v > 0 ? "+" : ""}${(100 * v).toFixed(1)}`);
  };
  const bare = (v, kind) => amount(v, kind).replace("%", "");
  function update() {
    const at = +$("group-measure").value, measure = data.measures[at], kind = measure.kind;
    const least = +$("group-least").value || 0, only = $("group-attribute").value, order = $("group-order").value;
    const chosen = data.groups.filter((group) => group.n >= least && (!only || group.attribute === only));
    const known = chosen.filter((group) => group.values[at][0] !== null);
    const sort = { low: (a, b) => a.values[at][0] - b.values[at][0], high: (a, b) => b.values[at][0] - a.values[at][0], large: (a, b) => b.n - a.n };
    if (sort[order]) known.sort(sort[order]);
    const ends = known.flatMap((group) => group.values[at].slice(0, 3)).filter((v) => v !== null);
    const low = Math.min(...ends, kind === "points" || kind === "signed" ? 0 : Infinity), high = Math.max(...ends);
    const span = high - low || 1, place = (v) => `${(1 + 98 * Math.min(Math.max((v - low) / span, 0), 1)).toFixed(2)}%`;
    const sorted = known.map((group) => group.values[at][0]).sort((a, b) => a - b);
    const middle = sorted.length ? (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2 : null;
    $("group-caption").textContent = `${measure.name}: ${measure.means}`;
    $("group-rows").tBodies[0].replaceChildren(...known.slice(0, MOST).map((group) => {
      const [value, from, to, few] = group.values[at];
      const row = document.createElement("tr"), head = row.appendChild(document.createElement("th"));
      head.scope = "row"; head.title = group.full;
      head.appendChild(document.createElement("bdi")).textContent = group.name;
      const means = head.appendChild(document.createElement("span")); means.className = "means"; means.textContent = group.attribute;
      const count = row.appendChild(document.createElement("td")); count.dataset.head = "rows"; count.textContent = group.n.toLocaleString("en");
      const cell = row.appendChild(document.createElement("td")); cell.dataset.head = "value";
      const strong = cell.appendChild(document.createElement("span")); strong.className = "value"; strong.textContent = amount(value, kind);
      if (from !== null) { const ends = document.createElement("span"); ends.className = "span"; ends.textContent = ` ${bare(from, kind)} to ${bare(to, kind)}${few ? " †" : ""}`; cell.append(" ", ends); }
      const plot = row.appendChild(document.createElement("td")); plot.className = "plot";
      const svg = make("svg", { class: "forest", width: "100%", height: 18, role: "img", "aria-label": `${measure.name} of ${group.name}: ${amount(value, kind)}` }, plot);
      if (middle !== null) make("line", { class: "zero", x1: place(middle), x2: place(middle), y1: 0, y2: 18 }, svg);
      if (from !== null) make("line", { class: "whisker after", x1: place(from), x2: place(to), y1: 9, y2: 9 }, svg);
      make("circle", { class: "after", cx: place(value), cy: 9, r: 4 }, svg);
      return row;
    }));
    const hidden = Math.max(0, known.length - MOST), short = chosen.length - known.length;
    const parts = [`${known.length} of ${data.groups.length} groups have a value.`];
    if (hidden) parts.push(`The first ${MOST} are shown.`);
    if (short) parts.push(`${short} have insufficient data.`);
    if (middle !== null) parts.push(`Median ${amount(middle, kind)}.`);
    $("group-says").textContent = parts.join(" ");
  }
  for (const id of ["group-measure", "group-attribute", "group-order", "group-least"]) $(id).addEventListener("input", update);
  update();
})();
