// Elements without markup: every text is a text node, so nothing that a fleet reports is ever parsed as HTML.
const SVG = "http://www.w3.org/2000/svg";
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}
function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((one) => one !== null && one !== undefined && one !== ""));
  return node;
}

// Text in which what is between two backticks is code.
export const coded = (words) => words.split("`").map((part, index) => (index % 2 ? el("code", {}, part) : part));

export const STATES = { ready: "good", running: "good", drained: "warn", starting: "warn", updating: "warn", barred: "warn", preparing: "warn", probing: "warn", draining: "warn", stopping: "warn", unloaded: "soft", failed: "bad", stopped: "soft" };
export const gib = (bytes) => `${digits(bytes / 2 ** 30)} GiB`;
// Two digits, or all before the point: as the command line has them.
const digits = (value) => (value >= 10 ? value.toFixed(0) : String(Number(value.toPrecision(2))));
export const short = (value) => (!Number.isFinite(value) ? "–" : value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));
export function clock(at) {
  const when = new Date(at * 1000);
  return when.toDateString() === new Date().toDateString() ? when.toLocaleTimeString() : when.toLocaleString([], { dateStyle: "short", timeStyle: "short" });
}
export function lasted(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
}

const WIDE = 230, GAP = 90, DOWN = 44, TOP = 26, LINE = 18, CHIP = 24, LETTERS = 28, MOST_CHIPS = 8;
export function picture(view, speeds, room) {
  if (!view.nodes.length) return el("p", { class: "soft" }, "No node has been read yet.");
  const lines = Math.ceil(view.nodes.length / Math.max(1, Math.floor((room + GAP) / (WIDE + GAP)))), columns = Math.ceil(view.nodes.length / lines);
  const places = new Map(view.nodes.map((node, index) => [node.name, index]));
  const drawn = view.links.filter((link) => areNeighbours(link, places, columns)), others = view.links.filter((link) => !drawn.includes(link));
  const chips = new Map(view.nodes.map((node) => [node.name, [...chipsOf(view, node.name, speeds), ...cablesOf(others, node.name)]]));
  const most = Math.max(1, ...[...chips.values()].map((each) => each.length));
  const tall = TOP + 70 + most * (CHIP + 4) + 8;
  const width = columns * WIDE + (columns - 1) * GAP + 20, height = lines * tall + (lines - 1) * DOWN + 10;
  const at = new Map(view.nodes.map((node, index) => [node.name, [10 + (index % columns) * (WIDE + GAP), 5 + Math.floor(index / columns) * (tall + DOWN)]]));
  const root = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": described(view) });
  root.style.maxWidth = `${width * 1.15}px`;
  for (const link of drawn) root.append(cable(link, at, tall));
  for (const node of view.nodes) root.append(nodeBox(node, at.get(node.name), tall, chips.get(node.name)));
  return root;
}
function described(view) {
  const nodes = view.nodes.map((node) => (node.joined ? `${node.name} is up${node.drained ? " and drained" : ""}` : `${node.name} is gone`));
  const links = view.links.map((link) => `${link.nodes.join(" to ")}${link.switch ? ` to ${link.switch}` : ""}: ${link.up} of ${link.rails} rails up`);
  return [...nodes, ...links].join("; ");
}
function chipsOf(view, name, speeds) {
  const found = [];
  for (const deployment of view.deployments) for (const group of deployment.groups) {
    const ranks = group.ranks.length ? group.ranks : [group.node];
    ranks.forEach((node, rank) => {
      if (node !== name) return;
      const words = rank === 0 ? `${deployment.name} · ${group.drained ? "drained" : group.state === "ready" ? `${short(speeds.get(group.name))} tok/s` : group.phase || group.state}` : `${deployment.name} rank ${rank}, see ${ranks[0]}`;
      found.push([words, group.drained ? "warn" : STATES[group.state] || "soft"]);
    });
  }
  const asleep = view.deployments.filter((one) => one.on_demand?.planned.some((plan) => plan.nodes.includes(name))), waits = asleep.filter((one) => one.on_demand.waiting_since !== null);
  found.push(...waits.map((one) => [`${one.name} · waits to start`, "warn"]));
  if (asleep.length > waits.length) found.push([`${asleep.length - waits.length} unloaded, on demand`, "soft"]);
  if (found.length <= MOST_CHIPS) return found;
  const first = [...found].sort((one, other) => URGENT.indexOf(other[1]) - URGENT.indexOf(one[1])).slice(0, MOST_CHIPS - 1);
  return [...first, [`${found.length - first.length} more, see Deployments`, "soft"]];
}
const URGENT = ["warn", "bad"];
// A line between two boxes is seen only if no other box is in between; every other cable is a line of text in its nodes' boxes.
function areNeighbours(link, places, columns) {
  const [a, b] = link.nodes.map((name) => places.get(name)).sort((one, other) => one - other);
  return link.nodes.length === 2 && a !== undefined && b !== undefined && (b - a === columns || (b - a === 1 && b % columns !== 0));
}
function cablesOf(links, name) {
  return links.filter((link) => link.nodes.includes(name)).map((link) => [`${link.up} of ${link.rails} rails to ${link.switch || link.nodes.find((one) => one !== name)}`, ["good", "warn", "bad"][stateOf(link)]]);
}
const stateOf = (link) => (link.up === link.rails ? 0 : link.up ? 1 : 2);
function cable(link, at, tall) {
  const state = ["", "warn", "bad"][stateOf(link)], words = `${link.up} of ${link.rails} rails`;
  const [[x1, y1], [x2, y2]] = link.nodes.map((name) => [at.get(name)[0] + WIDE / 2, at.get(name)[1] + tall / 2]);
  return s("g", {}, s("line", { class: `cable ${state}`, x1, y1, x2, y2 }), s("text", { x: (x1 + x2) / 2 + (x1 === x2 ? 8 : 0), y: (y1 + y2) / 2 + (x1 === x2 ? 5 : -8), "text-anchor": x1 === x2 ? "start" : "middle" }, words));
}
// Words that fit into a box, with their end; the whole of longer ones is shown by the pointer.
function line(attributes, words, end = "") {
  const room = LETTERS - end.length;
  if (words.length <= room) return s("text", attributes, words + end);
  return s("text", attributes, `${words.slice(0, room - 1)}…${end}`, s("title", {}, words + end));
}
function nodeBox(node, [x, y], tall, chips) {
  const g = s("g", { transform: `translate(${x} ${y})` }, s("rect", { class: `box ${node.joined ? "" : "bad"}`, width: WIDE, height: tall, rx: 8 }));
  g.append(line({ x: 10, y: TOP - 6, "font-weight": 600 }, node.name, (node.head ? " · head" : "") + (node.drained ? " · drained" : "")));
  if (!node.joined) {
    g.append(s("text", { x: 10, y: TOP + LINE }, "gone: Ray does not answer"));
    return g;
  }
  if (!node.memory_total || !Number.isFinite(node.memory_available)) {
    g.append(s("text", { class: "soft", x: 10, y: TOP + 28 }, "memory not read: it does not answer"));
  } else {
    const used = 1 - node.memory_available / node.memory_total;
    const state = node.memory_available < 3 * 2 ** 30 ? "bad" : node.memory_available < 6 * 2 ** 30 ? "warn" : "";
    g.append(s("rect", { class: "bar-back", x: 10, y: TOP + 4, width: WIDE - 20, height: 8, rx: 3 }), s("rect", { class: `bar ${state}`, x: 10, y: TOP + 4, width: Math.max(0, (WIDE - 20) * used), height: 8, rx: 3 }));
    g.append(s("text", { class: "soft", x: 10, y: TOP + 28 }, `${gib(node.memory_available)} of ${gib(node.memory_total)} free`));
  }
  const gpu = node.gpus[0];
  if (gpu) g.append(s("text", { class: "soft", x: 10, y: TOP + 46 }, `GPU ${Number.isFinite(gpu.busy) ? `${Math.round(gpu.busy * 100)} %` : "–"} · ${short(gpu.power_w)} W · ${short(gpu.temperature_c)} °C`));
  chips.forEach(([words, state], index) => {
    const top = TOP + 58 + index * (CHIP + 4);
    g.append(s("rect", { class: `chip ${state}`, x: 8, y: top, width: WIDE - 16, height: CHIP, rx: 5 }), line({ x: 16, y: top + 16 }, words));
  });
  return g;
}

// Half a circle from 0 to the predicted value's upper end, or the highest one seen; the predicted band is a part of its rim.
export function dial(label, value, band, most) {
  const top = Math.max(band ? band.high : 0, value ?? 0, most ?? 0) * 1.05 || 1, RIM = 40;
  const at = (number, radius) => { const angle = Math.PI * (1 - Math.min(1, number / top)); return `${50 + radius * Math.cos(angle)} ${48 - radius * Math.sin(angle)}`; };
  const arc = (from, to) => `M ${at(from, RIM)} A ${RIM} ${RIM} 0 0 1 ${at(to, RIM)}`;
  const words = `${label}: ${value === null ? "not measured yet" : `${short(value)} tok/s`}${band ? `, predicted ${short(band.low)} to ${short(band.high)} tok/s` : ""}`;
  const root = s("svg", { viewBox: "0 0 100 66", role: "img", "aria-label": words, class: "dial" }, s("path", { class: "rim", d: arc(0, top) }));
  if (band) root.append(s("path", { class: "rim predicted-rim", d: arc(band.low, band.high) }));
  if (value) root.append(s("path", { class: "rim value-rim", d: arc(0, value) }));
  root.append(s("text", { x: 50, y: 41, "text-anchor": "middle", "font-weight": 600 }, value === null ? "–" : short(value)), s("text", { class: "soft small", x: 50, y: 52, "text-anchor": "middle" }, "tok/s"), s("text", { class: "soft small", x: 50, y: 63, "text-anchor": "middle" }, label));
  return root;
}

export function bandBar(label, unit, band, value) {
  const top = Math.max(band.high, value ?? 0) * 1.1 || 1, width = 260;
  const x = (number) => (number / top) * width;
  const outside = value !== null && value !== undefined && (value < band.low || value > band.high);
  const words = value === null || value === undefined ? "not measured" : `measured ${short(value)} ${unit}`;
  const text = `${label}: ${words}; predicted ${short(band.mid)} (${short(band.low)} to ${short(band.high)}), ${band.provenance}${outside ? "; outside the prediction" : ""}`;
  const bar = s("svg", { viewBox: `0 0 ${width} 14`, role: "img", "aria-label": text });
  bar.style.maxWidth = "22rem";
  bar.append(s("rect", { class: "bar-back", y: 5, width, height: 4 }), s("rect", { class: "band", x: x(band.low), y: 2, width: Math.max(2, x(band.high) - x(band.low)), height: 10 }), s("line", { class: "mid", x1: x(band.mid), x2: x(band.mid), y1: 1, y2: 13 }));
  if (value !== null && value !== undefined) bar.append(s("circle", { class: `mark ${outside ? "warn" : ""}`, cx: x(value), cy: 7, r: 5 }));
  return el("div", {}, el("p", { class: "soft" }, text), bar);
}

export async function reasonOf(answer) {
  const found = await answer.json().catch(() => null); // a proxy in front answers with a page
  return found?.error?.message || `HTTP ${answer.status}`;
}
