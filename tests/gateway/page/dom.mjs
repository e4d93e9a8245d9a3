// As much of a browser's document as the page's scripts use, for node. It draws nothing.
class Element {
  constructor(tag) {
    Object.assign(this, { tag, attributes: new Map(), childNodes: [], parent: null, listeners: [], style: {}, dataset: {}, value: "", clientWidth: 320 });
  }
  get children() { return this.childNodes.filter((one) => one instanceof Element); }
  get id() { return this.getAttribute("id") ?? ""; }
  get hidden() { return this.attributes.has("hidden"); }
  set hidden(on) { if (on) this.setAttribute("hidden", ""); else this.attributes.delete("hidden"); }
  get open() { return this.attributes.has("open"); }
  get options() { return this.children; }
  get textContent() { return this.childNodes.map((one) => (one instanceof Element ? one.textContent : one)).join(""); }
  set textContent(words) { this.replaceChildren(...(words === "" ? [] : [words])); }
  get key() { return `<${this.tag} ${[...this.attributes].sort().join()}>${this.childNodes.map((one) => one.key ?? one).join("|")}`; }
  getAttribute(name) { return this.attributes.get(name) ?? null; }
  setAttribute(name, value) { this.attributes.set(name, String(value)); }
  append(...nodes) {
    for (const one of nodes) {
      this.childNodes.push(one instanceof Element ? one : String(one));
      if (one instanceof Element) one.parent = this;
    }
  }
  insertBefore(node, next) {
    this.childNodes.splice(next ? this.childNodes.indexOf(next) : this.childNodes.length, 0, node);
    node.parent = this;
  }
  replaceChildren(...nodes) {
    for (const one of this.children) one.parent = null;
    this.childNodes = [];
    this.append(...nodes);
  }
  replaceWith(other) {
    this.parent.childNodes[this.parent.childNodes.indexOf(this)] = other;
    [other.parent, this.parent] = [this.parent, null];
  }
  remove() {
    this.parent.childNodes = this.parent.childNodes.filter((one) => one !== this);
    this.parent = null;
  }
  isEqualNode(other) { return this.key === other.key; }
  contains(other) { return other !== null && (other === this || this.contains(other.parent)); }
  closest() { return this.parent; }
  all() { return [this, ...this.children.flatMap((one) => one.all())]; }
  querySelectorAll(selector) { return this.all().filter((one) => one.tag === "input" && (selector === "input" || one.checked)); }
  addEventListener(type, listener) { this.listeners.push([type, listener]); }
  async dispatch(type) {
    for (const [of, listener] of this.listeners) if (of === type) await listener({ preventDefault() {}, target: this });
  }
  click() { return this.dispatch("click"); }
  focus() { document.activeElement = this; }
  showModal() {}
  close(value) { this.returnValue = value; return this.dispatch("close"); }
}

const body = new Element("body");
globalThis.document = {
  body, hidden: false, activeElement: null, documentElement: new Element("html"),
  createElement: (tag) => new Element(tag),
  createElementNS: (_, tag) => new Element(tag),
  getElementById: (id) => body.all().find((one) => one.id === id) ?? null,
};
export const $ = document.getElementById;
// Every element with an id of index.html, flat.
export function make(html) {
  for (const [, tag, more] of html.matchAll(/<([a-z0-9]+)([^>]*\sid="[^>]*)>/g)) {
    const one = new Element(tag);
    one.setAttribute("id", more.match(/\sid="([^"]*)"/)[1]);
    if (/\shidden/.test(more)) one.hidden = true;
    body.append(one);
  }
}
// Timers run when a test says so.
export const timers = [];
globalThis.setTimeout = (work) => timers.push(work);
export const tick = () => timers.shift()();
// Answers by path: [status, body]; a body that is a string is no JSON.
export const answers = {}, requests = [];
globalThis.fetch = async (path, options) => {
  requests.push([path, options.headers, options.signal]);
  const [status, body] = answers[path.split("?")[0]] ?? [404, {}];
  if (status === 0) throw new TypeError("Failed to fetch");
  return { status, ok: status === 200, json: async () => JSON.parse(typeof body === "string" ? body : JSON.stringify(body)), body: null };
};
const tab = new Map();
globalThis.sessionStorage = { getItem: (name) => tab.get(name) ?? null, setItem: (name, value) => tab.set(name, value), removeItem: (name) => tab.delete(name) };
