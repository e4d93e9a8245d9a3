// What admin keys may do. Every change is confirmed in a dialog that names its consequence; the key goes in a header.
import { clock, coded, el, lasted, reasonOf } from "/page/draw.js";
import { loadMeans, servesOlder, sleepingOn, sleepingStopMeans, unloadMeans } from "/page/on_demand.js";

const $ = (id) => document.getElementById(id);
const FOLLOW_MS = 3000, MINUTES = 15, LATE_MS = 20000;
let headers = () => ({}), refresh = () => {}, following = null, asked = null;

export function begin(given, update) {
  headers = given;
  refresh = update;
  $("confirm").addEventListener("close", decided);
  $("confirm-no").addEventListener("click", () => $("confirm").close("no"));
  $("confirm-yes").addEventListener("click", () => $("confirm").close("yes"));
  $("log-form").addEventListener("submit", (event) => { event.preventDefault(); readLog(); });
  $("log-follow").addEventListener("change", () => ($("log-follow").checked ? follow() : clearTimeout(following)));
  $("capture").addEventListener("click", capture);
}

export function manage(view, replace) {
  $("manage").hidden = !view.admin;
  $("capture-note").hidden = !view.capture_until;
  if (view.capture_until) $("capture-note").textContent = `Until ${clock(view.capture_until)} admin keys see the beginning of prompts and answers, which are kept in memory.`;
  if (!view.admin) return;
  $("capture").textContent = view.capture_until ? "Delete the texts of requests" : `Show texts of requests for ${MINUTES} min`;
  $("capture").dataset.on = view.capture_until ? "yes" : "";
  replace($("manage-list"), [...view.nodes.map((one) => nodeRow(view, one)), ...view.deployments.flatMap((one) => [deploymentRow(view, one), ...one.groups.filter((group) => group.drained || group.state === "ready").map((group) => groupRow(one, group))]), ...view.stopped.map(stoppedRow)]);
  ranks(view);
}

function row(name, state, ...buttons) {
  return el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, state), el("td", {}, el("div", { class: "tools" }, buttons)));
}
function button(label, name, change) {
  const made = el("button", { type: "button", id: `${label}-${name}`, "aria-label": `${label} ${name}` }, label);
  made.addEventListener("click", () => confirmed(label, name, change));
  return made;
}
function nodeRow(view, node) {
  const path = `/api/nodes/${encodeURIComponent(node.name)}/drain`;
  const here = view.deployments.filter((one) => one.groups.some((group) => group.state !== "failed" && [group.node, ...group.ranks].includes(node.name))).map((one) => one.name);
  const runs = here.length ? `What runs there stays: ${here.join(", ")}. If one of its engines ends, it takes another rung or waits.` : "Nothing runs there now.";
  const asleep = sleepingOn(view, node.name), waits = asleep.length ? ` Requests for ${asleep.join(", ")}, which ${asleep.length === 1 ? "is" : "are"} not loaded, wait until then.` : "";
  const drain = { method: "PUT", path, means: `Nothing is planned or started on ${node.name} until it is undrained. ${runs}${waits}`, instead: `\`sparkfleet drain ${node.name}\` plans what runs there for other nodes, and moves it.` };
  const undrain = { method: "DELETE", path, means: `${node.name} may be used again. Only what waits for it starts.` };
  return row(`node ${node.name}`, !node.joined ? "gone" : node.drained ? "drained" : "in use", node.drained ? button("undrain", node.name, undrain) : button("drain", node.name, drain));
}
function deploymentRow(view, one) {
  const path = `/api/deployments/${encodeURIComponent(one.name)}`, exact = `?generation=${one.generation}`;
  const nodes = [...new Set(one.groups.flatMap((group) => [group.node, ...group.ranks]))].join(", ") || "its nodes";
  const running = one.groups.reduce((sum, group) => sum + group.running, 0), took = Math.max(0, ...one.groups.map((group) => group.started_s ?? 0));
  const asleep = one.on_demand && one.state === "unloaded", loaded = one.on_demand && (["ready", "starting", "updating"].includes(one.state) || servesOlder(one));
  const stop = { method: "POST", path: `${path}/stop${exact}`, means: asleep ? sleepingStopMeans(one) : `${one.name} ends and its memory on ${nodes} becomes free. New requests are refused; ${running ? `the ${running} that run may end first, for at most ${lasted(view.drain_s)}` : "none runs now"}. Generation ${one.generation} is kept and can be started again here.` };
  const restart = { method: "POST", path: `${path}/restart${exact}`, means: `Every engine of ${one.name} on ${nodes} starts again, at the first rung. The old ones serve until then if memory holds both; otherwise requests get 503 until it is ready${took ? `, last time after ${lasted(took)}` : ""}.` };
  if (one.state === "stopping") return row(one.name, one.state);
  const load = { method: "POST", path: `${path}/load${exact}`, means: one.on_demand ? loadMeans(view, one) : "" }, unload = { method: "POST", path: `${path}/unload${exact}`, means: one.on_demand ? unloadMeans(view, one) : "" };
  return row(one.name, asleep && one.on_demand.waiting_since !== null ? "unloaded, waits to start" : one.state,
    asleep && !one.on_demand.loaded_by ? button("load", one.name, load) : null,
    loaded || (asleep && one.on_demand.loaded_by) ? button("unload", one.name, unload) : null,
    asleep && (one.on_demand.instead ?? null) === null ? null : button("restart", one.name, restart), button("stop", one.name, stop));
}
function groupRow(deployment, group) {
  const path = `/api/groups/${group.name}/drain`, others = deployment.groups.filter((one) => one.name !== group.name && one.state === "ready" && !one.drained).length;
  const goes = others ? `New ones go to ${others} other group${others === 1 ? "" : "s"} of ${deployment.name}.` : `No other group of ${deployment.name} serves: until it is undrained, requests for ${deployment.name} get 503.`;
  const drain = { method: "PUT", path, means: `${group.name} gets no new requests; its engine goes on${group.running ? `, and the ${group.running} that run there end` : ""}. ${goes}` };
  const undrain = { method: "DELETE", path, means: `${group.name} gets requests again.` };
  return row(`group ${group.name}`, group.drained ? `drained, ${group.running} running` : group.state, group.drained ? button("undrain", group.name, undrain) : button("drain", group.name, drain));
}
function stoppedRow(one) {
  const start = { method: "POST", path: `/api/deployments/${encodeURIComponent(one.name)}/start?generation=${one.generation}`, means: one.on_demand ? `${one.name} is on demand again, with the plan of generation ${one.generation}: its next request, or load, starts it.` : `${one.name} starts with the plan of generation ${one.generation} and takes its memory on ${one.nodes.join(", ")}. What runs there is not moved: if memory does not hold both, it waits or fails with that reason.` };
  return row(one.name, "stopped", button("start", one.name, start));
}

function confirmed(label, name, change) {
  const dialog = $("confirm");
  $("confirm-title").textContent = `${label[0].toUpperCase()}${label.slice(1)} ${name}?`;
  $("confirm-means").textContent = change.means;
  $("confirm-instead").hidden = !change.instead;
  $("confirm-instead").replaceChildren(...coded(change.instead ?? ""));
  $("confirm-yes").textContent = `${label} ${name}`;
  dialog.returnValue = "";
  asked = { id: `${label}-${name}`, change };
  dialog.showModal();
  $("confirm-no").focus();
}
function decided() {
  if ($("confirm").open || asked === null) return; // the event of the dialog before, which was opened again meanwhile
  const { id, change } = asked;
  asked = null;
  $(id)?.focus(); // the button that had the focus was drawn again meanwhile
  if ($("confirm").returnValue === "yes") send(change.method, change.path);
}
async function call(method, path) {
  const answer = await fetch(path, { method, headers: headers(), cache: "no-store", signal: AbortSignal.timeout(LATE_MS) });
  if (!answer.ok) throw new Error(await reasonOf(answer));
  return answer.json();
}
const isAway = (error) => error instanceof TypeError || error.name === "TimeoutError";
async function send(method, path) {
  result("…", false);
  try {
    result((await call(method, path)).done, false);
  } catch (error) {
    result(isAway(error) ? "The endpoint does not answer: it is not known if anything was changed." : error.message, true);
  }
  refresh();
}
function result(words, failed) {
  $("manage-result").textContent = words;
  $("manage-result").className = failed ? "bad" : "";
}
function capture() {
  if ($("capture").dataset.on) return send("DELETE", "/api/capture");
  confirmed("show", "texts", { method: "PUT", path: `/api/capture?minutes=${MINUTES}`, means: `For ${MINUTES} minutes the first 500 characters of every prompt and answer at this endpoint are kept in the gateway's memory, for everybody with an admin key. Everybody who opens this page sees that. Tell those who use it.` });
}

function ranks(view) {
  const found = new Map();
  for (const deployment of view.deployments) for (const group of deployment.groups) {
    const replica = Number(group.name.split("/").at(-1));
    (group.ranks.length ? group.ranks : [group.node]).forEach((node, rank) => found.set(`${deployment.name} ${replica} ${rank}`, `${deployment.name}, replica ${replica}, rank ${rank} on ${node}`));
  }
  const known = [...$("log-rank").options].map((one) => `${one.value}=${one.textContent}`);
  if (known.join("\n") === [...found].map(([value, words]) => `${value}=${words}`).join("\n")) return;
  const chosen = $("log-rank").value;
  $("log-rank").replaceChildren(...[...found].map(([value, words]) => el("option", { value }, words)));
  if (found.has(chosen)) $("log-rank").value = chosen;
}
async function readLog() {
  const [name, replica, rank] = $("log-rank").value.split(" ");
  if (!name) { $("log-place").textContent = "Nothing runs, so there is no log."; return; }
  const lines = Math.min(2000, Math.max(1, Number($("log-lines").value) || 200)), pre = $("log");
  try {
    const found = await call("GET", `/api/deployments/${encodeURIComponent(name)}/logs?replica=${replica}&rank=${rank}&lines=${lines}`);
    const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;
    $("log-place").textContent = `${found.path} on ${found.node}`;
    pre.textContent = found.log;
    if (atEnd) pre.scrollTop = pre.scrollHeight;
  } catch (error) {
    $("log-place").textContent = isAway(error) ? "The endpoint does not answer: this is what it last sent." : error.message;
  }
}
async function follow() {
  if (!$("log-follow").checked) return;
  if (!document.hidden && !$("manage").hidden) await readLog();
  clearTimeout(following); // of another one, if it was switched off and on meanwhile
  following = setTimeout(follow, FOLLOW_MS);
}
