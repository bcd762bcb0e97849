"use strict";
// The six panels. Whatever is computed is computed in playground.js.

const DATA = JSON.parse(document.getElementById("data").textContent);

// ---- what Python wrote -----------------------------------------------------------------------------

const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

// An array, whole or as a list of rows. What has no bit is 0; the others come one by one, or as places among a few.
function unpack(packed) {
  if (Array.isArray(packed)) return packed.map(unpack);
  const { shape, kind, bits, numbers, places } = packed, some = bytes(bits), which = bytes(places);
  const found = new (kind === "f4" ? Float32Array : Float64Array)(bytes(numbers).buffer);
  const [n, ...inner] = shape, d = inner.reduce((product, size) => product * size, 1);
  let at = 0;
  const next = () => found[which.length ? which[at++] : at++];
  const flat = Array.from({ length: n * d }, (_, i) => (some[i >> 3] & (128 >> (i % 8)) ? next() : 0));
  return inner.length ? Array.from({ length: n }, (_, i) => flat.slice(i * d, (i + 1) * d)) : flat;
}

function load(name) {
  const set = DATA.sets[name];
  const values = set.objects ? set.values : unpack(set.values);
  const entries = unpack(set.keys).map((key, i) => ({
    name: set.names[i], code: set.codes[i], key, value: values[i], spot: set.plane[i],
  }));
  const queries = set.queries.map((query) => ({ ...query, key: unpack(query.key) }));
  return { ...set, temperature: Number(set.temperature), entries, queries };
}

// ---- numbers that stay true, and Python that says them ---------------------------------------------

const number = (x) => (Number.isInteger(x) ? String(x) : String(Number(x.toPrecision(4))));
const title = (entry) => entry.name ?? (entry.key.length === 1 ? number(entry.key[0]) : `(${entry.key.map(number).join(", ")})`);

function percent(share) {
  if (share === 0 || share === 1) return `${share * 100}%`;
  if (share < 0.001) return "<0.1%";
  return share > 0.999 ? "99.9%" : `${(share * 100).toFixed(1)}%`;
}

const clipped = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}\u2026` : text);

const pyNumber = (x) => (x === Infinity ? 'float("inf")' : String(x));
const pyVector = (key) => `[${key.map(pyNumber).join(", ")}]`;
const pyKey = (key, plain) => (plain ? pyNumber(key[0]) : pyVector(key));
const pyText = (text) => JSON.stringify(text);
const pyEntry = (entry, plain) => entry.code ?? pyKey(entry.key, plain);
const pySet = (set) => (set.source ? `sd = ${set.source}` : "# sd is the SoftDict that this page was made of");

// ---- parts of a page -------------------------------------------------------------------------------

const DRAWING = new Set(["svg", "g", "path", "circle", "line", "rect", "text", "polyline"]);

function el(tag, attributes = {}, ...children) {
  const node = DRAWING.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat());
  return node;
}

// A number to read, and to its last digit for whatever reads the page.
const datum = (value, text = percent(value), attributes = {}) => el("data", { value: JSON.stringify(value), ...attributes }, text);

const field = (label, control) => el("label", { class: "field" }, label, control);

function choice(label, options, chosen, onpick) {
  const select = el("select", {}, options.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
  select.addEventListener("change", () => onpick(select.value));
  return field(label, select);
}

function toggles(legend, name, options, chosen, onpick) {
  const inputs = options.map(([value, text]) =>
    el("label", {}, el("input", { type: "radio", name, value, checked: value === chosen, onchange: () => onpick(value) }), text),
  );
  return el("fieldset", {}, el("legend", { class: "quiet" }, legend), el("div", { class: "choices" }, inputs));
}

const sentence = (text) => (/[.!?\u2026]$/.test(text) ? text : `${text}.`);

// Asks for a guess; what is returned shows itself after one was made.
function guess(panel, question, choices, judge) {
  const section = document.getElementById(panel);
  const reveal = el("div", { class: "reveal", hidden: true });
  const said = el("output");
  const radios = choices.map((text, i) =>
    el("label", {}, el("input", { type: "radio", name: `${panel}-guess`, value: i, required: true }), text),
  );
  const button = el("button", { class: "main" }, "That is my guess");
  const asked = el("fieldset", {}, el("legend", {}, `Guess first: ${question}`), el("div", { class: "choices" }, radios), button);
  const form = el("form", { class: "guess" }, asked, said);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const { right, why } = judge();
    const chosen = Number(new FormData(form).get(`${panel}-guess`));
    said.append(el("span", { class: "chosen" }, chosen === right ? "Right: " : "Not so: "), sentence(choices[right]), ` ${why}`);
    radios[right].className = "chosen";
    asked.disabled = true;
    button.remove();
    reveal.hidden = false;
    reveal.dispatchEvent(new Event("reveal"));
  });
  section.append(form, reveal);
  return reveal;
}

function bars(label) {
  const list = el("ol", { class: "bars", "aria-label": label });
  list.show = (rows) => {
    while (list.children.length > rows.length) list.lastChild.remove();
    while (list.children.length < rows.length) {
      list.append(el("li", {}, el("span"), el("span", { class: "track" }, el("i"), el("b")), el("data")));
    }
    rows.forEach(({ name, share, before = null, best = false }, i) => {
      const [label, track, figure] = list.children[i].children;
      label.className = best ? "name best" : "name";
      label.textContent = label.title = name;
      track.firstChild.style.width = `${share * 100}%`;
      track.lastChild.hidden = before === null;
      track.lastChild.style.left = `${before * 100}%`;
      figure.value = JSON.stringify(share);
      figure.textContent = percent(share);
    });
  };
  return list;
}

function python(panel) {
  const pre = el("pre", { id: `${panel}-python`, tabindex: 0, "aria-label": "The same in Python" });
  const figure = el("figure", {}, el("figcaption", {}, "The same in Python"), pre);
  figure.show = (...lines) => (pre.textContent = lines.join("\n"));
  return figure;
}

// A dial from T = 0 to T = Infinity, both exactly, at its two end stops; `middle` is T half way.
function dial(onturn) {
  const FROM = -135, LAST = 100;
  let at = 50, middle = 1, grip = null, box = null;
  const range = el("input", { type: "range", min: 0, max: LAST, "aria-label": "Temperature T" });
  const polar = (angle, r) => [60 + r * Math.sin((angle * Math.PI) / 180), 60 - r * Math.cos((angle * Math.PI) / 180)];
  const arc = (to) => `M ${polar(FROM, 46)} A 46 46 0 ${to - FROM > 180 ? 1 : 0} 1 ${polar(to, 46)}`;
  const turned = el("path", { class: "turned" });
  const hand = el("line", { class: "hand" });
  const stop = (angle, text, x) => [
    el("circle", { class: "stop", cx: polar(angle, 46)[0], cy: polar(angle, 46)[1], r: 5 }),
    el("text", { x, y: 112, "text-anchor": "middle" }, text),
  ];
  const svg = el("svg", { viewBox: "0 0 120 118", "aria-hidden": "true" },
    el("path", { class: "arc", d: arc(-FROM) }), turned, el("circle", { class: "knob", cx: 60, cy: 60, r: 36 }), hand,
    stop(FROM, "0 hard", 24), stop(-FROM, "\u221e mean", 96));
  const output = el("output");
  const node = el("div", { class: "dial" }, range, svg, output);
  const temperature = () => {
    if (at === 0 || at === LAST) return at ? Infinity : 0;
    return at === 50 ? middle : Number((middle * 10 ** ((at - 50) / 16)).toPrecision(2));
  };
  function draw() {
    const angle = FROM + (at / LAST) * -2 * FROM;
    const T = temperature();
    turned.setAttribute("d", arc(angle));
    const [[x1, y1], [x2, y2]] = [polar(angle, 12), polar(angle, 31)];
    for (const [name, value] of Object.entries({ x1, y1, x2, y2 })) hand.setAttribute(name, value);
    output.textContent = T === Infinity ? "T = \u221e" : `T = ${number(T)}`;
    range.value = at;
    range.setAttribute("aria-valuetext", T === 0 ? "T = 0, the best alone" : T === Infinity ? "T infinite, the plain mean" : `T = ${number(T)}`);
  }
  function turn(to) {
    at = Math.max(0, Math.min(LAST, Math.round(to)));
    draw();
    onturn();
  }
  function follow(event) {
    const angle = (Math.atan2(event.clientX - box.x - box.width / 2, -(event.clientY - box.y - (box.height * 60) / 118)) * 180) / Math.PI;
    const to = (Math.max(FROM, Math.min(-FROM, angle)) - FROM) / (-2 * FROM) * LAST;
    if (grip !== null && Math.abs(to - at) > 60) return turn(at > 50 ? LAST : 0); // held back by the end stop
    grip = to;
    turn(to);
  }
  svg.addEventListener("pointerdown", (event) => {
    svg.setPointerCapture(event.pointerId);
    [grip, box] = [null, svg.getBoundingClientRect()]; // which stays, whatever a turn moves on the page
    follow(event);
    range.focus({ preventScroll: true });
    event.preventDefault();
  });
  svg.addEventListener("pointermove", (event) => svg.hasPointerCapture(event.pointerId) && follow(event));
  range.addEventListener("input", () => turn(Number(range.value)));
  return {
    node,
    get temperature() { return temperature(); },
    start(T) {
      middle = T > 0 && T < Infinity ? T : 1;
      at = T === 0 ? 0 : T === Infinity ? LAST : 50;
      draw();
    },
  };
}

// Yours, where there is something of yours, or the example; `onset` gets what was loaded.
function sets(example, onset) {
  if (!DATA.sets.yours) return { first: load(example), control: [] };
  const options = [["yours", "yours"], [example, "an example"]];
  return { first: load("yours"), control: [choice("Entries", options, "yours", (name) => onset(load(name)))] };
}

const resting = (weights) => `rests on ${number(effective(weights))} of ${weights.length} ${weights.length === 1 ? "entry" : "entries"}`;

// ---- Dict ------------------------------------------------------------------------------------------

function dictPanel() {
  const reveal = guess("dict", "you ask for a key that is not there. What happens?",
    ["Both raise KeyError", "The dict raises KeyError, the SoftDict returns the nearest value",
     "The dict raises KeyError, the SoftDict returns a blend of all values"],
    () => ({ right: 2, why: "Only at the end stop T = 0 does the best entry answer alone. Try it." }));
  let set, entries, edits;
  const asks = el("input", { type: "text", id: "dict-query", list: "dict-names", autocomplete: "off" });
  const names = el("datalist", { id: "dict-names" });
  const silent = el("input", { type: "text", id: "dict-null", inputmode: "text", placeholder: "none" });
  const hard = el("div", { class: "answer" }), soft = el("div", { class: "answer" });
  const body = el("tbody"), adding = el("form", { class: "row" }), out = python("dict");
  const knob = dial(update);
  const { first, control } = sets("hours", begin);

  const parsed = (text) => {
    const parts = text.replace(/^\s*[[(]|[\])]\s*$/g, "").split(",").map((part) => part.trim());
    return parts.every((part) => part !== "" && Number.isFinite(Number(part))) ? parts.map(Number) : null;
  };
  function read(text) {
    const key = set.measures ? parsed(text) : null;
    if (key) return key.length === set.width ? { key, code: pyKey(key, set.plain) } : { error: `ValueError: ${set.width} numbers wanted` };
    const entry = entries.find((entry) => entry.name !== null && entry.name === text);
    const known = entry ?? set.queries.find((query) => query.name === text);
    if (known) return { key: known.key, name: entry?.name, code: known.code };
    return { code: pyText(text), error: set.encodes ? "not encoded: this page knows only the queries that play() was given" : null };
  }
  const same = (a, b) => a.every((x, i) => x === b[i]);
  const find = (query) => entries.find((entry) =>
    entry.name === null ? query.key && query.name === undefined && same(entry.key, query.key) : entry.name === query.name);
  const shown = (value) => (Array.isArray(value) ? `[${value.map(number).join(", ")}]` : typeof value === "number" ? number(value) : value);
  const pyValue = (value) => (Array.isArray(value) ? pyVector(value) : typeof value === "number" ? pyNumber(value) : pyText(value));
  function readValue(text) {
    if (set.objects) return text;
    const values = parsed(text), pattern = set.entries[0].value;
    if (!values || values.length !== (Array.isArray(pattern) ? pattern.length : 1)) return null;
    return Array.isArray(pattern) ? values : values[0];
  }

  function begin(chosen) {
    [set, entries, edits] = [chosen, [...chosen.entries], []];
    names.replaceChildren(...[...set.queries, ...entries].slice(0, 60).map((x) => el("option", { value: title(x) })));
    const [one, two] = entries;
    asks.value = set.queries[0]?.name
      ?? (set.measures && two ? one.key.map((x, i) => number((x + two.key[i]) / 2)).join(", ") : title(one).replace(/[()]/g, ""));
    silent.value = set.null_score ?? "";
    knob.start(set.temperature);
    form();
    rebuild();
  }
  function note(line, start) {
    if (start && edits.at(-1)?.startsWith(start)) edits.pop();
    edits.push(line);
  }
  function rebuild() {
    body.replaceChildren(...entries.map((entry) => {
      const start = `sd[${pyEntry(entry, set.plain)}]`;
      const value = el("input", { type: "text", value: shown(entry.value), "aria-label": `value of ${title(entry)}` });
      value.addEventListener("input", () => {
        const given = readValue(value.value);
        value.setAttribute("aria-invalid", given === null);
        if (given === null) return;
        entry.value = given;
        note(`${start} = ${pyValue(given)}`, `${start} = `);
        update();
      });
      const remove = el("button", { type: "button", "aria-label": `delete ${title(entry)}`, onclick: () => {
        entries.splice(entries.indexOf(entry), 1);
        note(`del ${start}`);
        rebuild();
        (body.querySelector("button") ?? asks).focus();
      } }, "\u00d7");
      return el("tr", {}, el("th", { scope: "row" }, title(entry)), el("td", {}, value),
        el("td", {}, el("span", { class: "share" }, el("span", { class: "track" }, el("i")), el("data"))), el("td", {}, remove));
    }));
    update();
  }
  function form() {
    const labels = set.names.some((name) => name !== null);
    const input = (text) => el("input", { type: "text", required: true, "aria-label": text, placeholder: text });
    const [name, key, value] = [input("name"), input(labels ? "its vector" : "key"), input("value")];
    adding.replaceChildren(...(set.width > 8 ? [el("p", { class: "quiet" }, `Keys of ${set.width} numbers cannot be typed here.`)]
      : [...(labels ? [name] : []), key, value, el("button", {}, "Add")]));
    adding.onsubmit = (event) => {
      event.preventDefault();
      const vector = parsed(key.value), given = readValue(value.value);
      key.setCustomValidity(vector?.length === set.width ? "" : `${set.width} numbers, with commas between them`);
      value.setCustomValidity(given === null ? "a number, as all values here are" : "");
      if (!adding.reportValidity()) return;
      const entry = { name: labels ? name.value : null, code: labels ? pyText(name.value) : null, key: vector, value: given };
      const at = entries.findIndex((old) => title(old) === title(entry) && (labels || same(old.key, vector)));
      entries.splice(at < 0 ? entries.length : at, at < 0 ? 0 : 1, entry);
      const spelled = pyKey(vector, set.plain);
      note(labels ? `sd.add(${entry.code}, ${spelled}, ${pyValue(given)})` : `sd[${spelled}] = ${pyValue(given)}`);
      rebuild();
      form();
      adding.querySelector("input").focus();
    };
    for (const box of [key, value]) box.addEventListener("input", () => box.setCustomValidity(""));
  }

  function update() {
    const query = read(asks.value), found = query.error ? undefined : find(query), T = knob.temperature;
    const nullScore = silent.value.trim() === "" ? null : Number(silent.value);
    silent.setAttribute("aria-invalid", Number.isNaN(nullScore));
    const code = query.code ?? "", missing = (text) => el("strong", { class: "missing" }, text);
    const there = found ? [datum(found.value, "", { id: "dict-hard" }), el("strong", {}, shown(found.value))] : null;
    hard.replaceChildren(el("code", {}, `sd.hard[${code}]`), ...(there ?? [missing(query.code ? `KeyError: ${code}` : query.error)]));
    const asked = query.key && entries.length && !Number.isNaN(nullScore);
    const scores = asked ? score(set.similarity, query.key, entries.map((entry) => entry.key), set.width) : [];
    const { weights, nullWeight } = asked ? weigh(scores, T, { nullScore }) : { weights: entries.map(() => 0), nullWeight: 0 };
    entries.forEach((entry, j) => {
      const [track, figure] = body.rows[j].querySelector(".share").children;
      track.firstChild.style.width = `${weights[j] * 100}%`;
      figure.value = JSON.stringify(weights[j]);
      figure.textContent = asked ? percent(weights[j]) : "";
    });
    const settings = `temperature=${pyNumber(T)}${nullScore === set.null_score ? "" : `, null_score=${nullScore ?? "None"}`}`;
    const line = set.objects ? `sd.at(${settings}).lookup(${code}).vote()` : `sd.at(${settings})[${code}]`;
    let answer = "", result = null;
    if (asked && set.objects) {
      const votes = new Map();
      entries.forEach((entry, j) => votes.set(entry.value, (votes.get(entry.value) ?? 0) + weights[j]));
      result = Object.fromEntries(votes);
      const best = [...votes].filter(([, share]) => share).sort((a, b) => b[1] - a[1]).slice(0, 3);
      answer = best.map(([text, share]) => el("span", {}, el("b", {}, percent(share)), ` ${clipped(text, 80)}`, el("br")));
    } else if (asked) {
      result = blend(weights, entries.map((entry) => entry.value));
      answer = el("strong", {}, shown(result));
    }
    const nothing = query.error ?? (entries.length ? `KeyError: ${code}` : "KeyError: this SoftDict is empty");
    soft.replaceChildren(el("code", {}, line), ...(asked ? [datum(result, "", { id: "dict-soft" }), ...[answer].flat(),
      el("p", { class: "quiet" }, resting(weights) + (nullWeight ? `; the silent entry takes ${percent(nullWeight)}` : ""))]
      : [missing(nothing)]));
    out.show(pySet(set), ...edits, line);
  }

  asks.addEventListener("input", update);
  silent.addEventListener("input", update);
  const headings = el("tr", {}, ["key", "value", "share"].map((text) => el("th", { scope: "col" }, text)), el("td"));
  reveal.append(el("div", { class: "two" },
    el("div", { class: "stack" }, control, field("Ask for", asks), names,
      el("div", { class: "scroll" }, el("table", { class: "entries" }, el("thead", {}, headings), body)),
      adding, field("A silent entry scores (null_score)", silent)),
    el("div", { class: "stack" }, knob.node, el("div", {}, el("h3", {}, "The hard side, a dict"), hard),
      el("div", {}, el("h3", {}, "The soft side, a SoftDict"), soft))), out);
  begin(first);
}

// Where labels stand, by their middles: one after the other, each where it covers least of what is there before it, of all
// points and of what lies outside, and where no point is nearer to it than its own.
function labelled(owners, texts, points, side) {
  const boxes = [];
  const hidden = (a, b) => Math.max(0, Math.min(a.x + a.w, b.x + b.w) - Math.max(a.x - a.w, b.x - b.w))
    * Math.max(0, Math.min(a.y + a.h, b.y + b.h) - Math.max(a.y - a.h, b.y - b.h));
  const gap = (box, p) => Math.hypot(Math.max(0, Math.abs(p.x - box.x) - box.w), Math.max(0, Math.abs(p.y - box.y) - box.h)) - p.r;
  owners.forEach((own, i) => {
    const w = 4 * texts[i].length, h = 8, aside = own.r + w + 4, above = own.r + h + 1;
    const spots = [[aside, -12], [-aside, -12], [aside, 12], [-aside, 12], [0, -above], [0, above], [0, -above - 2 * h], [0, above + 2 * h]];
    const cost = (box) => 9 * (4 * w * h - hidden(box, { x: side / 2, y: side / 2, w: side / 2, h: side / 2 }))
      + [...boxes, ...points.map((p) => ({ ...p, w: p.r, h: p.r }))].reduce((sum, other) => sum + hidden(box, other), 0)
      + 99 * points.filter((p) => p !== own && gap(box, p) < gap(box, own)).length;
    const all = spots.map(([dx, dy]) => ({ x: own.x + dx, y: own.y + dy, w, h })), costs = all.map(cost);
    boxes.push(all[costs.indexOf(Math.min(...costs))]);
  });
  return boxes;
}

// ---- Plane -----------------------------------------------------------------------------------------

function planePanel() {
  const corners = load("corners");
  const best = (similarity) => title(corners.entries[winner(score(similarity, corners.queries[0].key, corners.entries.map((e) => e.key)))]);
  const reveal = guess("plane", "turn T all the way to 0, so that the best entry alone answers. Is it the nearest key?",
    ["Always: best means nearest", "It depends on the similarity", "Never: at T = 0 all answer alike"],
    () => ({ right: 1, why: `Among the keys (1, 0), (0, 1), (3, 3) the query (1, 0.1) finds ${best("gaussian")} by gaussian, `
      + `but ${best("dot")} by dot product, which likes long keys.` }));
  const SIDE = 400;
  let set, entries, query, similarity, box, step, before = null;
  const svg = el("svg", { class: "map", viewBox: `0 0 ${SIDE} ${SIDE}`, role: "group", "aria-label": "Keys and the query in the plane" });
  const list = bars("Shares of the entries"), out = python("plane"), note = el("p", { class: "quiet" }), sum = el("p", { class: "quiet" });
  const coordinate = (axis) => el("input", { type: "number", step: "any", "aria-label": `query ${axis}` });
  const x = coordinate("x"), y = coordinate("y");
  const knob = dial(() => { before = null; update(); });
  const { first, control } = sets("corners", begin);
  const likenesses = Object.keys(SIMILARITIES).map((name) => [name, name]);
  const likeness = choice("Similarity", likenesses, "", (name) => { similarity = name; before = null; update(); });
  const add = el("button", { type: "button", id: "plane-add", onclick: () => {
    before = shares();
    entries.push({ name: `new ${entries.length + 1 - set.plane.length}`, spot: [...query] });
    update();
  } }, "Add entry here");
  const remove = el("button", { type: "button", onclick: () => { entries.pop(); before = null; update(); } }, "Remove newest");

  const flat = () => set.width < 2;
  const vector = (spot) => (flat() ? spot.slice(0, 1) : spot);
  const shares = () => weigh(score(similarity, vector(query), entries.map((entry) => vector(entry.spot))), knob.temperature).weights;
  const rounded = (value) => Number((Math.round(value / step) * step).toPrecision(12));
  const place = ([a, b]) => [((a - box.left) / box.span) * SIDE, SIDE - ((b - box.bottom) / box.span) * SIDE];

  function begin(chosen) {
    set = chosen;
    entries = set.entries.slice(0, set.plane.length);
    similarity = set.similarity;
    likeness.lastChild.value = similarity;
    const spots = entries.map((entry) => entry.spot), [one, two = one] = spots;
    query = set.width <= 2 && set.queries[0] ? [...set.queries[0].key, 0].slice(0, 2) : [(one[0] + two[0]) / 2, (one[1] + two[1]) / 2];
    const reach = [0, 1].map((axis) => [...spots, query].map((spot) => spot[axis]));
    const [low, high] = [reach.map((values) => Math.min(...values)), reach.map((values) => Math.max(...values))];
    const extent = Math.max(high[0] - low[0], high[1] - low[1]) || 1;
    for (const axis of [0, 1]) { // the origin, where it is near: dot products are measured from there
      if (low[axis] > 0 && low[axis] < extent) low[axis] = 0;
      if (high[axis] < 0 && high[axis] > -extent) high[axis] = 0;
    }
    const span = 1.4 * (Math.max(high[0] - low[0], high[1] - low[1]) || 1);
    box = { span, left: (low[0] + high[0] - span) / 2, bottom: (low[1] + high[1] - span) / 2 };
    step = 10 ** Math.floor(Math.log10(span / 50));
    query = query.map(rounded);
    x.step = y.step = step;
    y.disabled = flat();
    before = null;
    knob.start(set.temperature);
    note.textContent = set.width > 2 ? `Keys have ${set.width} numbers; they are drawn, and looked up, in their two main directions.` : "";
    if (set.entries.length > entries.length) note.textContent += ` These are the first ${entries.length} of ${set.entries.length} entries.`;
    update();
  }
  function move(to) {
    const limited = (value, low) => rounded(Math.max(low, Math.min(low + box.span, value)));
    query = [limited(to[0], box.left), flat() ? 0 : limited(to[1], box.bottom)];
    before = null;
    update();
  }
  function update() {
    const weights = shares(), most = Math.max(...weights), [qx, qy] = place(query), [ox, oy] = place([0, 0]);
    const order = weights.map((_, j) => j).sort((i, j) => weights[j] - weights[i] || i - j), loudest = order.slice(0, 3);
    const focused = svg.contains(document.activeElement);
    const handle = el("g", { class: "query", tabindex: 0, role: "slider", "aria-label": "query: arrow keys move it", "aria-valuenow": query[0],
      "aria-valuetext": `x ${query[0]}, y ${query[1]}`, transform: `translate(${qx} ${qy})` },
      el("circle", { r: 22 }), el("path", { d: "M 0 -11 L 11 0 L 0 11 L -11 0 Z" }));
    const points = entries.map((entry, j) => {
      const [x, y] = place(entry.spot);
      return { x, y, r: 5 + 18 * Math.sqrt(weights[j]) };
    });
    const named = entries.length > 15 ? loudest : order, texts = named.map((j) => clipped(title(entries[j]), 16));
    const labels = labelled(named.map((j) => points[j]), texts, [...points, { x: qx, y: qy, r: 11 }], SIDE)
      .map(({ x, y }, i) => el("text", { x, y: y + 5, "text-anchor": "middle" }, texts[i]));
    svg.replaceChildren(
      el("line", { class: "axis", x1: 0, x2: SIDE, y1: oy, y2: oy }), el("line", { class: "axis", y1: 0, y2: SIDE, x1: ox, x2: ox }),
      ...entries.map((entry, j) => {
        const [x2, y2] = place(entry.spot);
        return el("line", { class: "ray", x1: qx, y1: qy, x2, y2, "stroke-width": 1 + 9 * weights[j], "stroke-opacity": 0.1 + 0.9 * weights[j] });
      }),
      ...entries.map((entry, j) => {
        const { x: cx, y: cy, r } = points[j];
        return el("g", {}, el("circle", { class: weights[j] === most ? "key wins" : "key", cx, cy, r }),
          el("circle", { class: "core", cx, cy, r: 2.5 }));
      }), ...labels, handle);
    if (focused) handle.focus();
    [x.value, y.value] = query;
    remove.disabled = entries.length === set.plane.length;
    const kept = order.slice(0, 12).sort((i, j) => i - j);
    list.show(kept.map((j) => ({ name: title(entries[j]), share: weights[j], before: before && (before[j] ?? 0), best: weights[j] === most })));
    sum.textContent = before ? "Blue marks: the shares before. A new entry takes from all." : resting(weights);
    const keys = entries.map((entry) => pyVector(vector(entry.spot))).join(", "), T = pyNumber(knob.temperature);
    out.show(`lookup_weights(${pyVector(vector(query))}, [${keys}], similarity="${similarity}", temperature=${T})`);
  }

  svg.addEventListener("pointerdown", (event) => { svg.setPointerCapture(event.pointerId); drag(event); });
  svg.addEventListener("pointermove", (event) => svg.hasPointerCapture(event.pointerId) && drag(event));
  function drag(event) {
    event.preventDefault();
    const area = svg.getBoundingClientRect();
    move([box.left + ((event.clientX - area.x) / area.width) * box.span, box.bottom + (1 - (event.clientY - area.y) / area.height) * box.span]);
    svg.querySelector(".query").focus({ preventScroll: true });
  }
  svg.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1] }[event.key];
    if (!way) return;
    event.preventDefault();
    move(query.map((value, axis) => value + way[axis] * step * (event.shiftKey ? 10 : 1)));
  });
  for (const input of [x, y]) input.addEventListener("change", () => move([Number(x.value), Number(y.value)]));
  reveal.append(el("div", { class: "two" },
    el("div", { class: "stack" }, svg, el("div", { class: "row" }, field("query x", x), field("query y", y)),
      el("div", { class: "row" }, add, remove), note),
    el("div", { class: "stack" }, control, likeness, knob.node, list, sum)), out);
  begin(first);
}

// ---- Highlighter -----------------------------------------------------------------------------------

function highlighterPanel() {
  let set, query, items;
  const asking = el("div"), texts = el("ol", { class: "texts", tabindex: 0, "aria-label": "Texts, best first" });
  const said = el("p", { class: "quiet" }), out = python("highlighter");
  const knob = dial(update);
  const { first, control } = sets("notes", begin);
  const asker = (of) => (entry) => ({ name: title(entry), key: entry.key, code: pyEntry(entry, of.plain) });
  const options = (of) => [...of.queries, ...of.entries.slice(0, 60).map(asker(of))];
  const start = options(first)[0];
  const scored = (of, by) => score(of.similarity, by.key, of.entries.map((entry) => entry.key), of.width);
  const best = winner(scored(first, start));
  const offered = first.entries.map((_, j) => j).filter((j) => j < 4 || j === Math.max(best, 4));
  const reveal = guess("highlighter", `the question is \u201c${start.name}\u201d. Which text gets the most ink?`,
    offered.map((j) => title(first.entries[j])), () => ({
      right: offered.indexOf(best),
      why: `It gets ${percent(weigh(scored(first, start), first.temperature).weights[best])} of the ink. Every text gets some, `
        + "and the shares sum to 1 whether anything fits or not.",
    }));
  function begin(chosen) {
    set = chosen;
    const all = options(set);
    asking.replaceChildren(choice("The question", all.map((x, i) => [String(i), x.name]), "0", (i) => ask(all[i])));
    items = set.entries.map((entry, j) => el("li", { class: "inked", value: j + 1 },
      el("div", { class: "head" }, el("span", {}, title(entry)), el("data")),
      el("p", {}, typeof entry.value === "string" ? entry.value : [entry.value].flat().map(number).join(", "))));
    knob.start(set.temperature);
    ask(all[0]);
  }
  function ask(asked) { // the order is that of the scores, which no temperature changes: nothing jumps while the dial is turned
    query = asked;
    const scores = scored(set, query), order = items.map((_, j) => j).sort((i, j) => scores[j] - scores[i]);
    texts.replaceChildren(...order.map((j) => items[j]));
    texts.scrollTop = 0;
    update();
  }
  function update() {
    const scores = scored(set, query), T = knob.temperature;
    const { weights, nullWeight } = weigh(scores, T, { nullScore: set.null_score });
    weights.forEach((share, j) => {
      const li = items[j], figure = li.querySelector("data");
      li.style.setProperty("--share", share);
      li.firstChild.classList.toggle("loud", share > 0.2);
      figure.value = JSON.stringify(share);
      figure.textContent = percent(share);
    });
    said.textContent = `The answer ${resting(weights)}${nullWeight ? `; the silent entry takes ${percent(nullWeight)}` : ""}. `
      + `The hard answer is \u201c${title(set.entries[winner(scores)])}\u201d alone.`;
    out.show(pySet(set), `sd.at(temperature=${pyNumber(T)}).lookup(${query.code}).weights`);
  }
  reveal.append(el("div", { class: "two" }, el("div", { class: "stack" }, control, asking, knob.node, said), texts), out);
  begin(first);
}

// ---- Roles -----------------------------------------------------------------------------------------

const HEAD = Object.fromEntries(Object.entries(DATA.head).map(([name, { tokens, q, k }]) => [name, { tokens, q: unpack(q), k: unpack(k) }]));
const HEAD_CODE = (which) =>
  ["layer, sentences = real_head()", `tokens, x = sentences["${which}"]`, "(q,), (k,), _ = layer.project(x.astype(float))"];

function rolesPanel() {
  const { tokens, q, k } = HEAD.tired, it = tokens.indexOf("it"), animal = tokens.indexOf("animal");
  const VIEWS = {
    plain: { make: () => attention(q, k, 1), code: "attention_weights(q, k)",
      told: "Each row is one word asking: its shares sum to 1. Columns sum to what they like: some words are heard by many." },
    swapped: { make: () => attention(k, q, 1), code: "attention_weights(k, q)",
      told: "Now keys ask and queries answer. Every single product is the same number as before, but it stands in the other row, and rows share." },
    wrong: { make: () => attention(q, k, 1, { wrongAxis: true }), code: "attention_weights(k, q).T",
      told: "Here the askers compete for each word: columns sum to 1, rows do not, so no answer is a blend. It is the transpose of the swapped one." },
  };
  const plain = VIEWS.plain.make();
  const reveal = guess("roles", "swap Q and K. Since q \u00b7 k = k \u00b7 q, what becomes of the weights of \u201cit\u201d?",
    ["Nothing: the products are the same", "They change"], () => {
      const best = winner(VIEWS.swapped.make()[it]);
      const gave = `\u201cit\u201d gave ${percent(plain[it][animal])} to \u201c${tokens[animal]}\u201d`;
      return { right: 1, why: `${gave}; swapped, its largest share is ${percent(VIEWS.swapped.make()[it][best])}, `
        + `for \u201c${tokens[best]}\u201d. Softmax shares out along each row, and rows are queries.` };
    });
  let view = "plain", row = it;
  const matrix = el("table", { class: "matrix" }), told = el("p", { class: "quiet" }), of = el("h3");
  const list = bars("The largest shares"), out = python("roles");
  function update() {
    const weights = VIEWS[view].make(), rows = rowSums(weights), columns = rowSums(transpose(weights));
    const most = Math.max(...columns), least = Math.min(...columns);
    const odd = (sum) => (Math.abs(sum - 1) > 1e-9 ? "sum odd" : "sum");
    const short = (share) => (share >= 0.995 ? "1" : share.toFixed(2).slice(1));
    const focused = matrix.contains(document.activeElement);
    matrix.replaceChildren(
      el("caption", { class: "quiet" }, "query asks (down), entry answers (across)"),
      el("thead", {}, el("tr", {}, el("td", { class: "who" }),
        tokens.map((token) => el("th", { scope: "col", class: "down" }, el("span", {}, token))),
        el("th", { scope: "col", class: "down end" }, el("span", {}, "row sum")))),
      el("tbody", {}, weights.map((shares, i) => el("tr", { class: i === row && "chosen" },
        el("th", { scope: "row" },
          el("button", { type: "button", "aria-pressed": String(i === row), onclick: () => { row = i; update(); } }, tokens[i])),
        shares.map((share) => el("td", { class: "inked", style: `--share: ${share}` }, datum(share, short(share)))),
        el("td", { class: odd(rows[i]) }, datum(rows[i], rows[i].toFixed(1)))))),
      el("tfoot", {}, el("tr", { class: "sums" }, el("th", { scope: "row" }, "sum"),
        columns.map((sum) => el("td", { class: odd(sum) }, datum(sum, sum.toFixed(sum < 0.1 ? 2 : 1)))), el("td"))));
    if (focused) matrix.querySelectorAll("tbody button")[row].focus();
    told.textContent = VIEWS[view].told;
    const word = (sum) => `${number(sum)} (${tokens[columns.indexOf(sum)]})`;
    if (most - least > 1e-9) told.textContent += ` Column sums run from ${word(least)} to ${word(most)}.`;
    of.textContent = `What \u201c${tokens[row]}\u201d listens to most`;
    const order = weights[row].map((_, j) => j).sort((i, j) => weights[row][j] - weights[row][i]).slice(0, 5);
    list.show(order.map((j, n) => ({ name: tokens[j], share: weights[row][j], best: n === 0 })));
    out.show(...HEAD_CODE("tired"), VIEWS[view].code);
  }
  const views = toggles("Who asks whom", "roles-view",
    [["plain", "queries ask, keys answer"], ["swapped", "Q and K swapped"], ["wrong", "softmax along the wrong axis"]], "plain",
    (name) => { view = name; update(); });
  reveal.append(el("div", { class: "stack" }, views, told, el("div", { class: "wide" }, matrix), of, list), out);
  update();
}

// ---- Real head -------------------------------------------------------------------------------------

function headPanel() {
  const { tokens, q, k } = HEAD.tired, it = tokens.indexOf("it");
  const choices = ["animal", "street", "tired", "it"];
  const reveal = guess("head",
    "\u201cThe animal didn\u2019t cross the street because it was too tired.\u201d What does \u201cit\u201d listen to most?",
    choices.map((word) => (word === "it" ? "it, itself" : word)), () => {
      const shares = attention(q, k, 1)[it], best = winner(shares);
      return { right: choices.indexOf(tokens[best]), why: `It gets ${percent(shares[best])}. Now make the street too wide.` };
    });
  let which = "tired", row = it, marks = "shown";
  const sentence = el("ol", { class: "sentence" }), list = bars("The largest shares"), said = el("p", { class: "quiet" }), out = python("head");
  const knob = dial(update);
  function update() {
    const { tokens, q, k } = HEAD[which], T = knob.temperature;
    const where = tokens.map((token) => !token.startsWith("["));
    const all = attention([q[row]], k, T, { where: marks === "masked" ? where : null })[0];
    const weights = marks === "cut" ? all.map((share, j) => (where[j] ? share : 0)) : all;
    const hidden = (j) => marks !== "shown" && !where[j];
    const focused = sentence.contains(document.activeElement);
    sentence.replaceChildren(...tokens.map((token, j) => el("li", {}, el("button", {
      type: "button", class: hidden(j) ? "inked hidden" : "inked", style: `--share: ${weights[j]}`, "aria-pressed": String(j === row),
      "aria-label": `${token}, ${percent(weights[j])}`, onclick: () => { row = j; update(); },
    }, el("span", {}, token), datum(weights[j])))));
    if (focused) sentence.querySelectorAll("button")[row].focus();
    const order = weights.map((_, j) => j).sort((i, j) => weights[j] - weights[i] || i - j).slice(0, 5);
    list.show(order.map((j, n) => ({ name: tokens[j], share: weights[j], best: n === 0 })));
    const scores = score("scaled_dot", q[row], k), hard = tokens[winner(scores, marks === "shown" ? null : where)];
    said.textContent = `A hard lookup would return \u201c${hard}\u201d${hard.startsWith("[") ? ", a mark: nothing" : ""}. `
      + `The answer ${resting(weights)}; its shares sum to ${number(rowSums([weights])[0])}.`;
    const seen = marks === "shown" ? [] : ['seen = np.array([not token.startswith("[") for token in tokens])'];
    const ask = `attention_weights(q, k, temperature=${pyNumber(T)}${marks === "masked" ? ", where=seen" : ""})`;
    out.show(...HEAD_CODE(which), ...seen, `${ask}[${row}]${marks === "cut" ? " * seen" : ""}  # ${tokens[row]} asks`);
  }
  const ends = toggles("because it was too", "head-which", [["tired", "tired"], ["wide", "wide"]], "tired", (name) => { which = name; update(); });
  const hiding = toggles("The marks [CLS] and [SEP]", "head-marks",
    [["shown", "take part"], ["masked", "are left out: the others share it all"], ["cut", "are cut off afterwards: shares sum to less"]],
    "shown", (name) => { marks = name; update(); });
  const largest = el("div", { class: "stack" }, el("h3", {}, "The largest shares"), list);
  reveal.append(el("div", { class: "stack" }, ends, sentence,
    el("div", { class: "two" }, largest, el("div", { class: "stack" }, knob.node, hiding)), said,
    el("p", { class: "quiet" }, "Weights say what was mixed. By themselves they do not explain why a model does what it does.")), out);
  knob.start(1);
  update();
}

// ---- Dimension -------------------------------------------------------------------------------------

function dimensionPanel() {
  const WIDTHS = [2, 8, 32, 128, 512, 2048], TRIALS = 200, KEYS = 8;
  const mean = (numbers) => numbers.reduce((sum, x) => sum + x, 0) / numbers.length;
  const reveal = guess("dimension", "8 random keys of width 2048, plain dot products, no dividing. How large is the largest share, on the average?",
    ["About 1/8: they are all alike", "About a half", "Nearly 1: one takes all"], () => ({
      right: 2, why: "A sum of d random products spreads by about \u221ad: scores are far apart, and softmax picks one. "
        + "Divided by \u221ad they spread by about 1 at every width.",
    }));
  let at = 1, seed = 1;
  const seen = new Map(); // width -> mean largest shares, of the present seed
  const width = el("input", { type: "range", min: 0, max: WIDTHS.length - 1, value: at, id: "dimension-width" });
  const shown = el("output"), raw = bars("Shares of the first draw, raw"), scaled = bars("Shares of the first draw, scaled");
  const rawMean = el("p", { class: "quiet" }), scaledMean = el("p", { class: "quiet" }), out = python("dimension");
  const chart = el("svg", { class: "chart", viewBox: "0 0 400 190", role: "img", "aria-label": "Mean largest share by width, raw and scaled" });
  function update() {
    const d = WIDTHS[at], drawn = draws(seed, TRIALS, KEYS, d);
    const means = ["raw", "scaled"].map((name) => mean(drawn[name].map((weights) => Math.max(...weights))));
    seen.set(d, means);
    shown.textContent = `d = ${d}`;
    width.setAttribute("aria-valuetext", `d = ${d}`);
    [[raw, drawn.raw[0]], [scaled, drawn.scaled[0]]].forEach(([list, weights]) =>
      list.show(weights.map((share, j) => ({ name: `key ${j + 1}`, share, best: share === Math.max(...weights) }))));
    [[rawMean, "raw"], [scaledMean, "scaled"]].forEach(([said, name], i) =>
      said.replaceChildren(`mean largest share of ${TRIALS} draws: `, datum(means[i], means[i].toFixed(2), { id: `dimension-${name}` })));
    const spot = (d, share) => [44 + WIDTHS.indexOf(d) * 62, 160 - share * 145];
    const visited = [...seen].sort((a, b) => a[0] - b[0]);
    const line = (i, name) => [el("polyline", { class: name, points: visited.map(([d, pair]) => spot(d, pair[i])).join(" ") }),
      ...visited.map(([d, pair]) => {
        const [cx, cy] = spot(d, pair[i]);
        return i ? el("rect", { class: name, x: cx - 5, y: cy - 5, width: 10, height: 10 }) : el("circle", { class: name, cx, cy, r: 5 });
      })];
    const [d0, pair] = visited.at(-1);
    const level = (share) => spot(2, share)[1];
    chart.replaceChildren(
      ...[0, 0.5, 1].flatMap((share) => [el("line", { class: "axis", x1: 36, x2: 395, y1: level(share), y2: level(share) }),
        el("text", { x: 30, y: level(share) + 4, "text-anchor": "end" }, String(share))]),
      ...WIDTHS.map((d) => el("text", { x: spot(d, 0)[0], y: 180, "text-anchor": "middle" }, String(d))), ...line(0, "raw"), ...line(1, "scaled"),
      ...["raw", "scaled"].map((name, i) => {
        const [x, y] = spot(d0, pair[i]), wide = d0 > 500;
        return el("text", { class: name, x: wide ? x - 8 : x + 9, y: y + (i ? 18 : -9), "text-anchor": wide ? "end" : "start" }, name);
      }));
    out.show(`rng = np.random.RandomState(${seed})`, `q, k = rng.normal(size=(${TRIALS}, 1, ${d})), rng.normal(size=(${TRIALS}, ${KEYS}, ${d}))`,
      '[lookup_weights(q, k, similarity=name).max(axis=-1).mean() for name in ("dot", "scaled_dot")]');
  }
  width.addEventListener("input", () => { at = Number(width.value); update(); });
  const again = el("button", { type: "button", id: "dimension-again", onclick: () => { seed += 1; seen.clear(); update(); } }, "Draw again");
  reveal.append(el("div", { class: "stack" },
    el("div", { class: "two" },
      el("div", { class: "stack" }, field("Width d of query and keys", width), el("div", { class: "row" }, shown, again),
        el("p", { class: "quiet" }, "Each width draws 200 queries, each with 8 keys of its own, from a normal distribution. "
          + "Move d through all six: the points stay.")),
      el("div", {}, el("h3", {}, "Mean largest share, by width"), chart)),
    el("div", { class: "two" }, el("div", {}, el("h3", {}, "First draw, raw: softmax(q \u00b7 k)"), raw, rawMean),
      el("div", {}, el("h3", {}, "First draw, scaled: softmax(q \u00b7 k / \u221ad)"), scaled, scaledMean))), out);
  reveal.addEventListener("reveal", update);
}

[dictPanel, planePanel, highlighterPanel, rolesPanel, headPanel, dimensionPanel].forEach((panel) => panel());
