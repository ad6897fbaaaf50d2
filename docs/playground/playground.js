// The page of the playground: hands the code to the worker, shows what comes back, reads and writes links.

import { pack, unpack } from "./link.js";

const $ = (id) => document.getElementById(id);
const code = $("code"), gutter = $("gutter"), result = $("result"), told = $("told"), pace = $("pace");
// Longer texts are no longer answered in a moment, and make links that few programs accept.
const LONGEST = 200_000;

let stories = [];
let worker = null, ready = false, busy = false, wanted = false, number = 0, asked = 0, waiting = 0, checked = "";
let begun = performance.now(), deaths = 0;

// Talking to the worker: one question at a time, and always the newest text.

function say(text, kind = "open") {
  told.textContent = text;
  told.className = `verdict ${kind}`;
}

function boot() {
  worker = new Worker("worker.js", { type: "module" });
  worker.onmessage = ({ data }) => receive(data);
  worker.onerror = () => receive({ dead: "the worker could not be started" });
}

function receive(data) {
  if (data.ready) {
    ready = true;
    pace.dataset.start = Math.round(performance.now() - begun);
    ask();
  } else if (data.dead) {
    revive(data.dead);
  } else {
    busy = false;
    clearTimeout(waiting);
    if (data.failed) fail(data.failed);
    else if (data.id === `look ${number}`) show(data.answer);
    else if (data.id === `mend ${number}`) offer(data.answer);
    if (wanted) ask();
  }
}

function revive(problem) {
  worker.terminate();
  clearTimeout(waiting);
  if (document.body.dataset.state === "absent") return;
  ready = busy = false;
  console.error(problem);
  if (++deaths > 3 || !pace.dataset.start) {
    say("Python could not be started here: the browser may be too old, or a file is missing", "bad");
    document.body.dataset.state = "dead";
    return;
  }
  say("Not checked: this text was too much for Python in the browser. The command may do better");
  document.body.dataset.state = "failed";
  wanted = false;
  boot();
}

function ask() {
  if (!ready || busy) {
    wanted = true;
    return;
  }
  wanted = false;
  if (code.value.length > LONGEST) {
    result.replaceChildren();
    say(`Not checked: more than ${LONGEST.toLocaleString("en")} characters are for the command`);
    return;
  }
  busy = true;
  asked = performance.now();
  document.body.dataset.state = "busy";
  waiting = setTimeout(() => say("Checking …"), 700);
  worker.postMessage({ id: `look ${++number}`, ask: "look", code: (checked = code.value) });
}

function fail(problem) {
  console.error(problem);
  say("accumlint failed on this text, which is its own fault. Please report it with the text", "bad");
  document.body.dataset.state = "failed";
}

// What comes back.

function show(answer) {
  const open = new Set([...result.querySelectorAll("details[open] > summary")].map((s) => s.textContent));
  result.innerHTML = answer.html;
  for (const one of result.querySelectorAll("details"))
    if (open.has(one.firstElementChild.textContent)) one.open = true;
  told.innerHTML = answer.told;
  told.className = `verdict ${answer.kind}`;
  flag(answer.lines);
  link();
  const took = Math.max(1, Math.round(performance.now() - asked));
  pace.dataset.took = took;
  pace.textContent = `Checked in ${took < 1000 ? `${took} ms` : `${(took / 1000).toFixed(1)} s`}.`;
  if (answer.fixable && !wanted) {
    busy = true;
    worker.postMessage({ id: `mend ${number}`, ask: "mend", code: checked });
  } else document.body.dataset.state = "done";
}

function offer(fixes) {
  for (const fix of fixes) {
    const article = $(fix.id);
    const before = article.querySelector(":scope > details");
    const holder = document.createElement("template");
    holder.innerHTML = fix.html;
    const details = holder.content.firstElementChild;
    details.open = true;
    details.classList.add("fix");
    if (fix.offered) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "Apply this fix";
      button.onclick = () => replace(fix.text);
      details.append(button);
    }
    article.insertBefore(details, before);
  }
  pace.dataset.mended = Math.round(performance.now() - asked);
  document.body.dataset.state = "done";
}

// The codes of rules lead to their pages, and places to their lines.
function link() {
  for (const span of result.querySelectorAll(".finding h2 .code, .found .rule, .why:last-child code")) {
    const name = /ACC\d{3}/.exec(span.textContent)[0];
    const anchor = document.createElement("a");
    anchor.href = `../rules/${name.toLowerCase()}.html`;
    anchor.textContent = span.textContent;
    span.replaceChildren(anchor);
  }
  for (const place of result.querySelectorAll("article > header .place")) {
    const line = Number(/:(\d+)/.exec(place.textContent)?.[1]);
    if (!line) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "plain";
    button.textContent = `line ${line}`;
    button.onclick = () => select(line);
    place.replaceChildren(button);
  }
}

// The editor: a text area with numbers beside it.

let flagged = new Set();

function flag(lines) {
  flagged = new Set(lines);
  count();
}

function count() {
  const rows = code.value.split("\n").length;
  const drawn = `${rows}: ${[...flagged]}`;
  if (gutter.dataset.drawn === drawn) return;
  gutter.dataset.drawn = drawn;
  const numbers = [];
  for (let row = 1; row <= rows; row++) {
    const one = document.createElement("span");
    one.textContent = flagged.has(row) ? `● ${row}` : row;
    if (flagged.has(row)) one.className = "flagged";
    numbers.push(one, "\n");
  }
  gutter.replaceChildren(...numbers);
  gutter.parentElement.style.setProperty("--rows", rows);
  scrolled();
}

function scrolled() {
  gutter.scrollTop = code.scrollTop;
}

function select(line) {
  const rows = code.value.split("\n");
  const start = rows.slice(0, line - 1).reduce((sum, row) => sum + row.length + 1, 0);
  code.focus();
  code.setSelectionRange(start, start + rows[line - 1].length);
  const height = code.scrollHeight / rows.length;
  code.scrollTop = Math.max(0, (line - 4) * height);
  code.scrollIntoView({ block: "nearest" });
}

// Replaces the text in a way that the browser's own undo takes back.
function replace(text) {
  code.focus();
  code.select();
  if (!document.execCommand("insertText", false, text)) code.value = text;
  code.setSelectionRange(0, 0);
  code.scrollTop = 0;
  changed();
}

function changed() {
  flagged = new Set();
  count();
  ask();
}

// A new line begins below the last one; Tab goes on to the next control, as everywhere on a page.
code.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.isComposing || event.ctrlKey || event.metaKey) return;
  const before = code.value.slice(0, code.selectionStart).split("\n").pop();
  const indent = /^\s*/.exec(before)[0] + (before.trimEnd().endsWith(":") ? "    " : "");
  event.preventDefault();
  if (!document.execCommand("insertText", false, `\n${indent}`))
    code.setRangeText(`\n${indent}`, code.selectionStart, code.selectionEnd, "end");
});
code.addEventListener("input", (event) => {
  if (event.inputType === "insertFromPaste" || !code.value) tell(null);
  changed();
});
code.addEventListener("scroll", scrolled);
$("clear").onclick = () => {
  replace("");
  history.replaceState(null, "", "#");
  tell(null);
};

// Links: `#story=name` is a mistake of the gallery, `#code=…` the text itself.

$("share").onclick = async () => {
  const fragment = `#code=${await pack(code.value)}`;
  history.replaceState(null, "", fragment);
  const size = location.href.length;
  const held = `The link holds the code itself (${size.toLocaleString("en")} characters); nothing was sent.`;
  try {
    await navigator.clipboard.writeText(location.href);
    $("shared").textContent = `Copied. ${held}`;
  } catch {
    $("shared").textContent = `Copy it from the address bar. ${held}`;
  }
};

async function visit({ first = false } = {}) {
  const [kind, value] = location.hash.slice(1).split("=");
  if (kind === "code") {
    $("shared").textContent = "";
    try {
      load(await unpack(value, LONGEST), null);
    } catch {
      load("", null);
      $("shared").textContent = "This link is damaged: it holds no code that can be read.";
    }
  } else if (kind === "story" || first) {
    $("shared").textContent = "";
    const story = stories.find((one) => one.id === value) ?? stories[0];
    if (story) load(story.code, story);
  }
}

function load(text, story) {
  code.value = text;
  code.scrollTop = code.scrollLeft = 0;
  changed();
  tell(story);
}

function tell(story) {
  $("story").hidden = !story;
  if (story) {
    $("story").innerHTML = `<summary><h2>${story.title}</h2></summary>${story.html}`;
    // On a phone the result comes first.
    $("story").open = matchMedia("(min-width: 64rem)").matches;
  }
  for (const anchor of $("gallery").querySelectorAll("a"))
    if (story && anchor.hash === `#story=${story.id}`) anchor.setAttribute("aria-current", "true");
    else anchor.removeAttribute("aria-current");
}

function hang() {
  for (const story of stories) {
    const item = document.createElement("li");
    item.innerHTML = `<a href="#story=${story.id}"><strong>${story.title}</strong> <span>${story.who}</span></a>`;
    item.firstElementChild.onclick = () => scrollTo({ top: 0 });
    $("gallery").append(item);
  }
}

function absent() {
  worker?.terminate();
  say("This site was built without Python for the browser, so nothing is checked here");
  document.body.dataset.state = "absent";
}

addEventListener("hashchange", () => visit());
boot();
const parts = await fetch("parts.json").then((response) => response.json()).catch(() => ({}));
stories = parts.stories ?? [];
if (!parts.runs) absent();
hang();
await visit({ first: true });
