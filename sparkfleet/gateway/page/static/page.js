import { begin, manage } from "/page/admin.js";
import { STATES, bandBar, clock, coded, dial as meter, el, gib, lasted, picture, reasonOf, short } from "/page/draw.js";
import { awaitsStart, demandLines, plannedOf } from "/page/on_demand.js";

const EVERY_MS = 1500, LATE_MS = 6000;
const $ = (id) => document.getElementById(id);
const state = { view: null, ahead: 0, refused: false, before: new Map(), speeds: new Map(), key: kept((tab) => tab.getItem("key")) || "", running: null, prefill: new Map(), most: new Map(), open: new Set(), notice: "" }, FEW = 3, DAY_S = 86400;

function kept(work) {
  try { return work(sessionStorage); } catch { return null; } // a browser that keeps nothing
}
// Seconds on the fleet's clock: this machine's may differ.
const now = () => Date.now() / 1000 - state.ahead;
function headers() {
  return state.key ? { authorization: `Bearer ${state.key}` } : {};
}
async function read(path) {
  const answer = await fetch(path, { headers: headers(), cache: "no-store", signal: AbortSignal.timeout(LATE_MS) });
  if (answer.status === 401) throw new Refused();
  if (!answer.ok) throw new Error(`${path}: HTTP ${answer.status}`);
  return answer.json();
}
class Refused extends Error {}

async function update() {
  try {
    const view = await read("/api/fleet");
    state.refused = false;
    if (view.nodes) {
      state.ahead = Date.now() / 1000 - (view.at + view.stale_s);
      speeds(view);
      state.view = view;
      show(view);
    } else {
      $("summary").textContent = "The fleet has not been read yet.";
    }
    const recent = (await read("/api/requests")).requests;
    prefill(recent);
    requests(recent);
    trouble([state.notice, view.trouble, ...(view.warnings || [])].filter(Boolean).join("\n"));
  } catch (error) {
    if (error instanceof Refused) {
      trouble(state.key ? "This API key is not valid." : "This page needs an API key here: on the head itself it needs none.");
      if (!state.refused) askForKey();
      state.refused = true;
      forget();
    } else {
      trouble(`The endpoint does not answer. ${state.view ? `What is shown is from ${clock(state.view.at)}; the` : "The"} page tries again by itself.`);
    }
  }
}
function trouble(words) {
  $("trouble").hidden = !words;
  if ($("trouble").textContent !== words) $("trouble").textContent = words;
}
// Nothing stays in sight of somebody whose key is gone.
function forget() {
  state.view = null;
  for (const id of ["endpoint", "picture", "deployments", "models", "manage-list", "log", "events", "requests"]) $(id).replaceChildren();
  $("manage").hidden = $("capture-note").hidden = true;
  $("summary").textContent = "Waiting for an API key.";
}
// Groups report every few seconds: between two near views the count stands still or makes a double step.
const WINDOW_S = 6;
function speeds(view) {
  const counted = view.deployments.flatMap((one) => one.groups).filter((group) => Number.isFinite(group.tokens)), names = new Set(counted.map((group) => group.name));
  for (const known of [state.before, state.speeds]) for (const name of known.keys()) if (!names.has(name)) known.delete(name);
  for (const group of counted) {
    let seen = state.before.get(group.name) ?? [];
    if (seen.length && view.at <= seen.at(-1).at) continue;
    if (seen.length && group.tokens < seen.at(-1).tokens) { seen = []; state.speeds.delete(group.name); } // another engine, whose count began anew
    seen.push({ at: view.at, tokens: group.tokens });
    while (seen.length > 2 && view.at - seen[1].at >= WINDOW_S) seen.shift();
    state.before.set(group.name, seen);
    if (seen.length > 1) state.speeds.set(group.name, (group.tokens - seen[0].tokens) / (view.at - seen[0].at));
  }
}

// Prompt tokens per second until the first byte, over the last requests of each model: what their prompts really took, queue included.
function prefill(list) {
  const sums = new Map();
  for (const one of list) {
    if (!(one.input_tokens > 0 && one.first_byte_ms > 0 && one.events > 1) || one.status !== 200) continue; // an answer in one piece has no first token
    const sum = sums.get(one.model) ?? [0, 0, 0];
    if (sum[2] < 10) sums.set(one.model, [sum[0] + one.input_tokens, sum[1] + one.first_byte_ms / 1000, sum[2] + 1]);
  }
  state.prefill = new Map([...sums].map(([name, [tokens, seconds]]) => [name, tokens / seconds]));
}
function highest(name, value) {
  state.most.set(name, Math.max(state.most.get(name) ?? 0, value ?? 0));
  return state.most.get(name);
}

function show(view) {
  $("fleet-name").textContent = view.fleet;
  const groups = view.deployments.flatMap((one) => one.groups);
  const count = (list, want) => list.filter(want).length, sum = (list, name) => list.reduce((all, one) => all + (one[name] ?? 0), 0);
  const gone = count(view.nodes, (one) => !one.joined), unreached = count(view.entries, (one) => !one.reached), unloaded = count(view.deployments, (one) => one.state === "unloaded");
  $("summary").textContent = [
    `${view.nodes.length} ${view.nodes.length === 1 ? "node" : "nodes"}${gone ? `, ${gone} gone` : ""}`,
    view.deployments.length ? `${count(view.deployments, (one) => one.state === "ready")} of ${view.deployments.length} deployments ready${unloaded ? `, ${unloaded} unloaded` : ""}` : "nothing deployed",
    `requests: ${sum(groups.filter((one) => !countsConnections(one)), "running")} running, ${sum(groups, "waiting") + sum(view.deployments, "queued")} waiting`,
    `${short(together(groups))} tok/s`,
    view.stale_s > 5 ? `as of ${lasted(view.stale_s)} ago` : "",
  ].filter(Boolean).join(" · ");
  const failed = count(view.deployments, (one) => one.state === "failed"), spoken = [gone && `${gone} ${gone === 1 ? "node" : "nodes"} gone`, unreached && `${unreached} ${unreached === 1 ? "address" : "addresses"} of the endpoint not reached`, failed && `${failed} ${failed === 1 ? "deployment" : "deployments"} failed`].filter(Boolean).join(", ");
  if ($("spoken").textContent !== spoken) $("spoken").textContent = spoken;
  document.title = `${spoken || view.trouble ? "⚠ " : ""}sparkfleet ${view.fleet}`;
  renew($("picture"), [picture(view, state.speeds, $("picture").clientWidth)]);
  renew($("endpoint"), addresses(view));
  renew($("deployments"), view.deployments.length ? view.deployments.map(card) : [el("p", { class: "soft" }, ...nothing(view))]);
  models(view.deployments);
  manage(view, replace);
  renew($("events"), view.events.map((one) => el("tr", {}, el("td", {}, clock(one.at)), el("td", {}, one.subject || one.deployment || "fleet"), el("td", {}, `${one.kind}: ${one.message}`))));
}
// The words in place of deployments if there are none.
function nothing(view) {
  if (view.paused) return coded("The fleet is being taken down, or a `sparkfleet down` did not end. `sparkfleet up` starts all of it again, `sparkfleet down` stops the rest.");
  return view.reader && !view.admin ? ["Nothing is deployed that this key may use."] : coded("Nothing is deployed. `sparkfleet apply FILE` starts a deployment.");
}
// Output of all groups that count tokens; null if none does yet.
function together(groups) {
  const known = groups.filter((one) => state.speeds.has(one.name));
  return known.length ? known.reduce((sum, one) => sum + state.speeds.get(one.name), 0) : null;
}
function replace(parent, children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement.id : "";
  parent.replaceChildren(...children);
  if (focused) ($(focused) ?? parent.closest("[tabindex]"))?.focus();
}
// Children that did not change stay, wherever new ones come in, and with them what somebody selects in them.
function renew(parent, children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement.id : "", before = [...parent.children];
  let at = 0;
  for (const child of children) {
    const same = before.findIndex((one, index) => index >= at && one.isEqualNode(child));
    if (same < 0) parent.insertBefore(child, before[at] ?? null);
    else {
      for (const gone of before.slice(at, same)) gone.remove();
      at = same + 1;
    }
  }
  for (const gone of before.slice(at)) gone.remove();
  if (focused) $(focused)?.focus();
}
const ON_LOOPBACK = /^https?:\/\/(127\.|localhost|\[::1\])/;
function addresses(view) {
  const days = (view.certificate_expires_at - now()) / DAY_S, head = `${view.nodes.find((one) => one.head)?.name ?? ""} (head)`;
  return [
    view.endpoint ? address(view.endpoint, [head, ON_LOOPBACK.test(view.endpoint) && "reached by programs on it only, unless the inventory has `gateway: {host: 0.0.0.0}`"]) : null,
    ...view.entries.map((one) => address(one.url, [one.node, one.reached ? `${one.connections} ${one.connections === 1 ? "connection" : "connections"}` : "not reached: use another address"], one.reached)),
    view.certificate_expires_at ? el("li", { class: days > 14 ? "soft" : "bad" }, days > 0 ? `Its certificate is valid for ${Math.floor(days)} days.` : "Its certificate has expired: clients refuse it.") : null,
    view.deployments.length ? el("li", { class: "soft" }, el("span", {}, coded("`model` is a deployment's name; `sparkfleet connect CLIENT NAME` prints the settings of a client."))) : null,
  ].filter(Boolean);
}
function address(url, words, reached = true) {
  const code = el("code", {}, url), copy = el("button", { type: "button", id: `copy-${url}`, "aria-label": `Copy ${url}` }, "Copy");
  copy.addEventListener("click", () => copied(code));
  return el("li", {}, code, copy, el("span", { class: reached ? "soft" : "bad" }, coded(words.filter(Boolean).join(" · "))));
}
// A browser lets pages of HTTPS and of its own machine alone write to the clipboard; elsewhere the older way works, or the text is at least selected.
async function copied(code) {
  let done = true;
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    getSelection().selectAllChildren(code);
    done = document.execCommand("copy");
  }
  $("copied").textContent = done ? `Copied: ${code.textContent}` : "Selected: Ctrl+C copies it";
}
function card(one) {
  return el("article", { class: "card" },
    el("div", { class: "head" }, el("h3", {}, one.name), el("span", { class: `pill ${STATES[one.state] || ""}` }, one.state), el("span", { class: "soft" }, `${one.objective} · generation ${one.generation}`)),
    one.detail ? el("p", {}, coded(one.detail)) : null,
    one.state === "failed" && !one.detail.includes("`sparkfleet describe") ? el("p", {}, coded(`\`sparkfleet describe ${one.name}\` has the reason of each attempt.`)) : null,
    expected(one),
    one.on_demand ? demandLines(one, now()) : null,
    one.queued && !awaitsStart(one) ? el("p", { class: "warn" }, `${one.queued} ${one.queued === 1 ? "request waits" : "requests wait"} at the gateway until a group has room; one that comes now would wait about ${lasted(one.wait_s)}`) : null,
    meters(one),
    one.groups.map((group) => groupOf(one, group)),
    one.speculation.map((words) => el("p", { class: "soft" }, coded(`speculation: ${words}`))),
    one.bench.map((words) => el("p", { class: "soft" }, `bench ${words}`)),
    one.on_demand ? plannedOf(one) : null,
    one.rejected.length ? fold(`${one.name}-rejected`, `Rejected: ${one.rejected.length} ${one.rejected.length === 1 ? "candidate" : "candidates"}`, el("ul", {}, one.rejected.map((each) => el("li", {}, `${each.what}: ${each.reason}${each.rule ? ` (${each.rule})` : ""}`)))) : null);
}
function expected(one) {
  if (!one.ready_at) return null;
  const left = one.ready_at - now();
  return el("p", { class: "warn" }, left > 0 ? `Expected to be ready in ${lasted(left)}, at ${clock(one.ready_at)}, as its last start` : `Its start takes ${lasted(-left)} longer than the last one`);
}
function meters(one) {
  const ready = one.groups.filter((group) => group.state === "ready");
  if (!ready.length) return null;
  const decode = together(ready), prompts = state.prefill.get(one.name) ?? null, band = ready[0].predicted;
  const total = band.total_tps && { low: band.total_tps.low * ready.length, high: band.total_tps.high * ready.length };
  return el("div", { class: "meters" },
    meter("decode now", decode, total, highest(`${one.name} decode`, decode)),
    meter("prefill, last requests", prompts, band.prefill_tps, highest(`${one.name} prefill`, prompts)));
}
function memoryOf(group) {
  const band = group.predicted.memory_bytes, held = group.memory.map((one) => `${gib(one.bytes)}${group.memory.length > 1 ? ` on ${one.node}` : ""}`).join(", ");
  const predicted = band && `${gib(band.mid)} ${band.provenance === "declared" ? "declared in the deployment" : "predicted"}`;
  return held && predicted ? `${held} (${predicted})` : held || predicted;
}
function countsConnections(group) { return group.engine === "custom"; }
function groupOf(deployment, group) {
  const predicted = group.predicted, measured = group.measured, shown = group.drained && group.state === "ready" ? "drained" : group.state;
  const dial = (name, value) => el("div", {}, el("dt", {}, name), el("dd", {}, value));
  const starting = group.phase ? `${group.phase}${group.share === null ? "" : ` ${Math.round(group.share * 100)} %`}, ${lasted(Math.max(0, now() - group.since))} in this state` : "";
  const requests = countsConnections(group) ? `not counted; ${group.running} ${group.running === 1 ? "connection" : "connections"} open` : `${group.running}${group.slots ? ` of ${group.slots}` : ""} running, ${group.waiting} waiting`, speed = `${short(state.speeds.get(group.name))} tok/s`;
  const reasons = [group.reason, ...group.passed.map((why) => `a rung above was left: ${why}`), ...group.notes].filter(Boolean);
  const figures = [
    el("dl", { class: "dials" },
      dial("decode now", speed),
      dial("requests", requests),
      group.drafted ? dial("drafts accepted", `${Math.round((100 * group.accepted) / group.drafted)} %`) : null,
      group.context ? dial("context", `${group.context.toLocaleString()} tokens`) : null,
      memoryOf(group) ? dial("memory per rank", memoryOf(group)) : null,
      group.started_s ? dial("started in", lasted(group.started_s)) : null),
    predicted.check_decode_tps ? bandBar("One user, after the start", "tok/s", predicted.check_decode_tps, measured.decode_tps) : measured.decode_tps ? el("p", { class: "soft" }, `One user, after the start: measured ${short(measured.decode_tps)} tok/s, TTFT ${short(measured.ttft_ms)} ms; no prediction for this hardware`) : null,
    predicted.check_ttft_ms ? bandBar("Its first token (TTFT)", "ms", predicted.check_ttft_ms, measured.ttft_ms) : null,
    reasons.length ? fold(`${group.name}-plan`, `Rung ${group.rung} of ${group.rungs} of its ladder: why`, el("ul", {}, reasons.map((why) => el("li", {}, why)))) : null,
  ];
  return el("div", { class: "group" },
    el("p", {}, el("span", { class: `pill ${STATES[shown] || ""}` }, shown), ` ${[group.name.slice(deployment.name.length + 1), group.shape || group.node, group.how || group.engine, group.model].filter(Boolean).join(" · ")}`),
    starting ? el("p", { class: "warn" }, starting) : null,
    group.detail ? el("p", {}, group.detail) : null,
    deployment.groups.length > FEW ? fold(`${group.name}-figures`, `${speed} · requests: ${requests}`, el("div", {}, figures)) : figures);
}
function fold(id, title, body) {
  const details = el("details", { open: state.open.has(id) }, el("summary", { id: `fold-${id}` }, title), body);
  details.addEventListener("toggle", () => (details.open ? state.open.add(id) : state.open.delete(id)));
  return details;
}
function models(deployments) {
  const known = [...$("models").querySelectorAll("input")].map((one) => one.value);
  const offered = deployments.filter((one) => one.state !== "stopping"), names = offered.map((one) => one.name);
  for (const one of offered) if ($(`sleeps-${one.name}`)) $(`sleeps-${one.name}`).textContent = sleeps(one);
  if (names.length && known.join("\n") === names.join("\n")) return;
  if (!names.length) return renew($("models"), [el("span", { class: "soft" }, "There is none.")]);
  const chosen = new Set([...$("models").querySelectorAll("input:checked")].map((one) => one.value));
  $("models").replaceChildren(...names.map((name, index) => {
    const box = el("input", { type: "checkbox", value: name, id: `model-${index}` });
    box.checked = chosen.has(name) || (!chosen.size && index === 0);
    return el("label", { for: `model-${index}` }, box, ` ${name}`, el("span", { class: "soft", id: `sleeps-${name}` }, sleeps(offered[index])));
  }));
}
const sleeps = (one) => (one.on_demand && one.state === "unloaded" ? " (unloaded: a prompt starts it)" : "");
function requests(list) {
  const ms = (value) => (value === null || value === undefined ? "–" : `${short(value)} ms`);
  const speed = (one) => (one.events > 1 && one.output_tokens > 1 && one.ms > one.first_byte_ms ? `${short((one.output_tokens - 1) / ((one.ms - one.first_byte_ms) / 1000))} tok/s` : "–");
  const texts = list.some((one) => one.prompt);
  $("text-head").hidden = !texts;
  renew($("requests"), list.map((one) => el("tr", {}, [...[clock(one.at), one.key ?? "–", one.model ?? one.path, `${one.status}${one.error ? ` ${one.error}` : ""}`, one.input_tokens ?? "–", one.output_tokens ?? "–", ms(one.first_byte_ms), ms(one.ms), speed(one)], ...(texts ? [one.prompt ? `${one.prompt} → ${one.answer}` : "–"] : [])].map((cell) => el("td", {}, String(cell))))));
}

function notice(words) {
  state.notice = words;
  trouble(words);
}
async function run(event) {
  event.preventDefault();
  if ($("run").disabled) return; // Ctrl+Enter
  const names = [...$("models").querySelectorAll("input:checked")].map((one) => one.value);
  notice("");
  if (!state.key) { askForKey(); $("key").focus(); notice("A prompt needs an API key: `sparkfleet keys create NAME` makes one."); return; }
  if (!names.length) { notice("Choose a deployment."); return; }
  const stop = (state.running = new AbortController());
  $("run").disabled = true; $("stop").disabled = false;
  const count = Math.min(32, Math.max(1, Number($("count").value) || 1));
  const cards = names.map((name) => answerCard(name, count));
  $("answers").replaceChildren(...cards.map((one) => one.root));
  await Promise.all(cards.flatMap((one) => Array.from({ length: count }, (_, index) => ask(one, index, stop.signal))));
  $("run").disabled = false; $("stop").disabled = true;
}
function answerCard(name, count) {
  const known = state.view?.deployments.find((one) => one.name === name), starts = known ? awaitsStart(known) : false;
  const figures = el("p", { class: "soft", role: "status" }, starts ? "waiting for its start…" : "waiting…"), text = el("pre", { tabindex: "0" });
  return { name, count, starts, figures, text, done: [], failed: [], began: performance.now(), root: el("article", { class: "card" }, el("h3", {}, name), figures, text) };
}
async function ask(card, index, signal) {
  const body = { model: card.name, messages: [{ role: "user", content: $("prompt").value }], max_tokens: Number($("most").value) || 128, stream: true, stream_options: { include_usage: true } };
  const began = performance.now();
  let first = null, tokens = 0;
  try {
    const answer = await fetch("/v1/chat/completions", { method: "POST", headers: { ...headers(), "content-type": "application/json" }, body: JSON.stringify(body), signal });
    if (!answer.ok) throw new Error(await reasonOf(answer));
    for await (const event of events(answer.body)) {
      const piece = event.choices?.[0]?.delta;
      const words = piece?.content || piece?.reasoning_content || piece?.reasoning || "";
      if (words) { first ??= performance.now(); if (index === 0) card.text.append(words); }
      tokens = event.usage?.completion_tokens ?? tokens;
      if (event.error) throw new Error(event.error.message);
    }
    card.done.push({ ttft: (first ?? performance.now()) - began, tokens, speed: tokens > 1 && first ? (tokens - 1) / ((performance.now() - first) / 1000) : null });
  } catch (error) {
    card.failed.push(error.name === "AbortError" ? "stopped" : error.message);
  }
  figures(card);
}
function figures(card) {
  const mean = (list) => (list.length ? list.reduce((sum, one) => sum + one, 0) / list.length : null);
  const tokens = card.done.reduce((sum, one) => sum + one.tokens, 0), seconds = (performance.now() - card.began) / 1000;
  const words = [`${card.done.length} of ${card.count} answered`];
  if (card.done.length) words.push(`${card.starts ? "TTFT with its start" : "TTFT"} ${short(mean(card.done.map((one) => one.ttft)))} ms`, `${short(mean(card.done.map((one) => one.speed).filter((one) => one !== null)))} tok/s each`, `${short(tokens / seconds)} tok/s together`, `${tokens} tokens`);
  if (card.failed.length) words.push(`failed: ${[...new Set(card.failed)].join("; ")}`);
  card.figures.textContent = words.join(" · ");
}
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data:") && line.slice(5).trim() !== "[DONE]") yield JSON.parse(line.slice(5));
    }
  } finally {
    reader.cancel().catch(() => {}); // after an error event the engine need not go on
  }
}

function askForKey() {
  $("key-form").hidden = false;
  $("key-button").setAttribute("aria-expanded", "true");
}
$("key-button").addEventListener("click", () => {
  $("key-form").hidden = !$("key-form").hidden;
  $("key-button").setAttribute("aria-expanded", String(!$("key-form").hidden));
  if (!$("key-form").hidden) $("key").focus();
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = $("key").value.trim();
  if (/[^!-~]/.test(given)) { notice("This is no API key: it has characters that no key has."); return; } // no header takes them
  state.key = given;
  kept((tab) => tab.setItem("key", given));
  state.refused = false;
  $("key").value = "";
  notice("");
  $("key-button").click();
  update();
});
$("key-forget").addEventListener("click", () => { forget(); notice(""); state.key = ""; kept((tab) => tab.removeItem("key")); update(); });
$("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
});
$("try").addEventListener("submit", run);
$("try").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); $("try").requestSubmit(); } });
$("stop").addEventListener("click", () => state.running?.abort());

begin(headers, update);
async function forever() {
  if (!document.hidden) await update();
  setTimeout(forever, EVERY_MS);
}
forever();
