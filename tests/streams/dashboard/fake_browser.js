// Runs the dashboard's page.js on a document that keeps text as text. It refuses each property and
// attribute that could turn text into markup or code. Arguments: page.js, a file of events.
"use strict";
const fs = require("node:fs");
const vm = require("node:vm");

const PROPERTIES = new Set(["className", "hidden", "max", "onsubmit", "scope", "textContent", "value"]);
const ATTRIBUTES = /^(aria-\w+|class|data-name|points|preserveAspectRatio|role|scope|tabindex|viewBox)$/;
const ELEMENTS = new Set([
  "caption", "details", "div", "li", "polyline", "pre", "progress", "span", "summary", "svg",
  "table", "tbody", "td", "th", "thead", "tr",
]);
const refused = [];
const refuse = (what) => {
  refused.push(what);
  throw new Error(what);
};

class Element {
  constructor(name) {
    Object.assign(this, { name, own: "", children: [], dataset: {}, attributes: {}, className: "" });
    Object.assign(this, { hidden: false, parent: null, value: "" });
    this.classList = { toggle: () => {} };
  }
  get textContent() { return this.own + this.children.map((child) => child.textContent).join(""); }
  set textContent(text) { [this.own, this.children] = [String(text), []]; }
  get firstElementChild() { return this.children[0] || null; }
  get parentElement() { return this.parent || (this.parent = element("div")); }
  get nextElementSibling() {
    const beside = this.parent.children;
    return beside[beside.indexOf(this) + 1] || null;
  }
  setAttribute(name, value) {
    if (!ATTRIBUTES.test(name)) refuse(`attribute ${name}`);
    this.attributes[name] = String(value);
  }
  append(...nodes) { for (const node of nodes) this.insertBefore(node, null); }
  prepend(node) { this.insertBefore(node, this.children[0] || null); }
  insertBefore(node, place) {
    if (!(node instanceof Element)) refuse("a node that is none");
    node.remove();
    const index = place === null ? this.children.length : this.children.indexOf(place);
    this.children.splice(index, 0, node);
    node.parent = this;
  }
  remove() {
    if (this.parent) this.parent.children = this.parent.children.filter((child) => child !== this);
  }
  querySelector(selector) {
    const fits = (child) => selector === `.${child.attributes.class}` || selector === child.name;
    for (const child of this.children) {
      const found = fits(child) ? child : child.querySelector(selector);
      if (found) return found;
    }
    return null;
  }
  addEventListener() {}
  focus() {}
  *all() {
    yield this;
    for (const child of this.children) yield* child.all();
  }
}
const INSIDE = new Set(["children", "own", "parent"]);
function element(name) {
  return new Proxy(new Element(name), {
    set(target, key, value, receiver) {
      if (!PROPERTIES.has(key) && !INSIDE.has(key)) refuse(`property ${String(key)}`);
      return Reflect.set(target, key, value, receiver);
    },
  });
}

process.on("unhandledRejection", (error) => refused.push(String(error)));

const byId = new Map();
const document = {
  title: "",
  body: element("body"),
  getElementById(id) {
    if (!byId.has(id)) byId.set(id, element("div"));
    return byId.get(id);
  },
  createElement: (name) => (ELEMENTS.has(name) ? element(name) : refuse(`element ${name}`)),
  createElementNS: (_, name) => document.createElement(name),
};
const [, , script, events] = process.argv;
const data = fs.readFileSync(events, "utf8");
const parts = [data.slice(0, data.length / 2), data.slice(data.length / 2)];
let asked = 0;
const reader = { read: async () => (parts.length ? { value: parts.shift(), done: false } : { done: true }) };
const fetch = async () => {
  asked += 1;
  if (asked > 1) return new Promise(() => {});
  return { ok: true, status: 200, body: { pipeThrough: () => ({ getReader: () => reader }) } };
};
const context = {
  document, fetch, Intl, Date, Map, Set, AbortController,
  sessionStorage: { getItem: () => null, setItem: () => {} },
  TextDecoderStream: class {},
  setTimeout: () => 0, clearTimeout: () => {}, setInterval: () => 0,
};
vm.runInNewContext(fs.readFileSync(script, "utf8"), context);
setImmediate(() => setTimeout(() => {
  const nodes = [document.body, ...byId.values()].flatMap((root) => [...root.all()]);
  const page = {
    refused, title: document.title,
    texts: nodes.map((node) => node.own).filter(Boolean),
    marks: nodes.flatMap((node) => [node.className, ...Object.values(node.attributes)]),
  };
  process.stdout.write(JSON.stringify(page));
}, 50));
