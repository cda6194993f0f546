// Small functions for building elements. No text is ever read as HTML.

// byID returns the element with this ID.
export function byID(id) {
  return document.getElementById(id);
}

// make returns an element with these properties and children. Children are elements or
// texts. class, data-* and aria-* are attributes.
export function make(tag, properties = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name === "class" || name === "role" || name.includes("-")) e.setAttribute(name, value);
    else e[name] = value;
  }
  e.append(...children);
  return e;
}

// setText changes the text of an element only if it differs, so that screen readers do
// not repeat it.
export function setText(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

// pairs fills a list of descriptions with [term, description, class] rows. It keeps the
// elements of rows that stay.
export function pairs(list, rows) {
  while (list.children.length > rows.length) list.lastElementChild.remove();
  rows.forEach(([term, description, name = ""], i) => {
    let row = list.children[i];
    if (!row) {
      row = make("div", {}, make("dt"), make("dd"));
      list.append(row);
    }
    setText(row.children[0], term);
    setText(row.children[1], description);
    if (row.children[1].className !== name) row.children[1].className = name;
  });
}
