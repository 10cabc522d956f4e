// Elements and texts. Names come from members, so they are only set as text, never as markup; the
// content security policy enforces that.

export const $ = (id) => document.getElementById(id);
export const number = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
export const sum = (values) => values.reduce((all, each) => all + each, 0);
export const plural = (many, noun) => `${number.format(many)} ${noun}${many === 1 ? "" : "s"}`;

export function duration(ms) {
  const units = [["d", 86400000], ["h", 3600000], ["min", 60000], ["s", 1000]];
  const value = Math.max(Math.floor(ms), 0);
  if (value < 1000) return `${value} ms`;
  for (let i = 0; i + 1 < units.length; i += 1) {
    const [unit, size] = units[i];
    const [smaller, part] = units[i + 1];
    if (value >= size) return `${Math.floor(value / size)} ${unit} ${Math.floor((value % size) / part)} ${smaller}`;
  }
  return `${(Math.floor(value / 100) / 10).toFixed(1)} s`;
}

// Parts of the page are changed only in place, to keep scrolling and focus.

export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

export function make(name, attributes = {}, text = "") {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text) node.textContent = text;
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

export function draw(name, attributes = {}, text = "") {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text) node.textContent = text;
  return node;
}

/** Give `parent` one child per item, in order; keep children with the same key. */
export function sync(parent, items, keyOf, create, update) {
  const seen = new Map();
  const keys = items.map((item) => {
    const key = keyOf(item);
    seen.set(key, (seen.get(key) || 0) + 1);
    return `${key} ${seen.get(key)}`; // makes repeated keys unique
  });
  const wanted = new Set(keys);
  const old = new Map();
  for (const child of [...parent.children]) {
    if (wanted.has(child.dataset.key)) old.set(child.dataset.key, child);
    else child.remove();
  }
  let place = parent.firstElementChild;
  items.forEach((item, index) => {
    const child = old.get(keys[index]) || create(item);
    child.dataset.key = keys[index];
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  });
}
