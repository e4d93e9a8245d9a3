// Deployments on demand: what ends or starts each, and what it will take.
import { clock, coded, el, gib, lasted, short } from "/page/draw.js";

const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const ENDS = "when another one needs its memory";

export const isAsleep = (one) => one.state === "unloaded" && one.groups.length === 0;
export const awaitsStart = (one) => one.on_demand !== null && (one.state === "unloaded" || one.state === "starting");

// True if the generation before one that did not start serves.
export const servesOlder = (one) => one.state === "failed" && (one.on_demand.instead ?? null) !== null && one.groups.some((group) => group.state === "ready");

// Who waits for its start; null if nobody does.
export function waiting(one, now) {
  const use = one.on_demand, took = use.waiting_since === null ? null : lasted(Math.max(0, now - use.waiting_since));
  const requests = one.queued ? `${many(one.queued, "request")} ${one.queued === 1 ? "waits" : "wait"} at the gateway for its start` : null;
  if (use.loaded_by) return [`${use.loaded_by} has waited ${took ?? "0 s"} for its start`, requests].filter(Boolean).join("; ");
  if (took === null) return requests;
  return requests ? `${requests}, the first for ${took}` : `A request has waited ${took} for its start`;
}
// When a loaded one ends; null for any other.
export function end(one, now) {
  const use = one.on_demand, idle = use.idle_s;
  if (one.state !== "ready" && one.state !== "updating" && !servesOlder(one)) return null;
  if (use.in_flight) return `In use, ${many(use.in_flight, "request")} in flight: it ends ${idle === null ? "" : `${lasted(idle)} after the last one, or `}${ENDS}`;
  const unused = use.unused_since === null ? "On demand" : `No request for ${lasted(Math.max(0, now - use.unused_since))}`;
  if (use.ends_at !== null) return `${unused}: it ends in ${lasted(Math.max(0, use.ends_at - now))}, at ${clock(use.ends_at)}, or ${ENDS}`;
  return `${unused}: it ends ${idle === null ? "" : `${lasted(idle)} after its last request, or `}${ENDS}`;
}
// Lines of its card.
export function demandLines(one, now) {
  const words = awaitsStart(one) && waiting(one, now), ends = end(one, now);
  return [
    words ? el("p", { class: "warn" }, words) : null,
    ends ? el("p", { class: "soft" }, ends) : null,
    one.state === "failed" && !one.groups.some((group) => group.state === "ready") ? el("p", {}, coded(`Its requests get a 503, and start nothing, until \`sparkfleet apply FILE --retry\` with its file, or an admin's restart under Manage.`)) : null,
  ];
}
// What the next request starts.
export function plannedOf(one) {
  const took = one.on_demand.start_s;
  return one.on_demand.planned.map((plan) => {
    const memory = plan.predicted.memory_bytes, speed = plan.predicted.check_decode_tps ?? plan.predicted.decode_tps;
    const dial = (name, value) => el("div", {}, el("dt", {}, name), el("dd", {}, value));
    return el("div", { class: "group" },
      el("p", {}, [plan.shape, plan.how, plan.model].filter(Boolean).join(" · ")),
      el("dl", { class: "dials" },
        memory ? dial("memory per rank", `${gib(memory.mid)} ${memory.provenance === "declared" ? "declared" : "predicted"}`) : null,
        speed ? dial("one user", `${short(speed.mid)} tok/s ${speed.provenance === "measured" ? "measured" : "predicted"}`) : null,
        plan.context ? dial("context", `${plan.context.toLocaleString()} tokens`) : null,
        dial("its last start took", took === null ? "not known yet" : lasted(took))));
  });
}

// Words before a change of an admin.
const joined = (names) => names.join(", ");
const nodesOf = (one) => [...new Set([...one.groups.flatMap((group) => [group.node, ...group.ranks]), ...(one.on_demand?.planned ?? []).flatMap((plan) => plan.nodes)])];
export function loadMeans(view, one) {
  const nodes = nodesOf(one), memory = one.on_demand.planned[0]?.predicted.memory_bytes, took = one.on_demand.start_s;
  const others = view.deployments.filter((other) => other !== one && other.on_demand && other.groups.some((group) => group.state !== "failed" && group.state !== "draining") && nodesOf(other).some((node) => nodes.includes(node))).map((other) => other.name);
  const room = others.length
    ? `If memory does not hold ${others.length === 1 ? `both, ${others[0]} ends for it` : `all, those of ${joined(others)} that were not used for longest end for it`}: at once after 10 s without a request, otherwise after as long in service as the start took, 60 s at least. Requests in flight there end first, for at most ${lasted(view.drain_s)}, and new ones wait.`
    : "Nothing else on demand is loaded there.";
  return `${one.name} starts${memory ? ` with ${gib(memory.mid)}` : ""} on ${nodes.length > 1 ? "each of " : ""}${joined(nodes) || "its nodes"}, as for a request${took === null ? "" : `; its last start took ${lasted(took)}`}. ${room} It waits 10 min at most, also if you close this page, and is not kept loaded: it ends for others as if a request had started it.`;
}
export function unloadMeans(view, one) {
  const count = Math.max(one.on_demand.in_flight, one.groups.reduce((sum, group) => sum + group.running, 0)), nodes = joined(nodesOf(one)) || "its nodes";
  if (one.state === "unloaded") return `The load by ${one.on_demand.loaded_by} is taken back: ${one.name} starts for a request only. Nothing that runs is changed.`;
  return `${one.name} ends and its memory on ${nodes} becomes free. ${count ? `${count === 1 ? "The request in flight ends" : `The ${count} requests in flight end`} first, for at most ${lasted(view.drain_s)}` : "No request is in flight"}. The next request starts it again.`;
}
export function sleepingStopMeans(one) {
  return `${one.name} is not loaded, so no memory becomes free. New requests are refused instead of starting it${one.queued ? `, and so ${one.queued === 1 ? "is the one" : `are the ${one.queued}`} that ${one.queued === 1 ? "waits" : "wait"} now` : ""}. Generation ${one.generation} is kept and can be started again here.`;
}
// Deployments that cannot start while a node is drained.
export const sleepingOn = (view, node) => view.deployments.filter((one) => one.on_demand && isAsleep(one) && nodesOf(one).includes(node)).map((one) => one.name);
