// A page to talk to the model, and to watch the engine. No dependencies; nothing leaves this server.
"use strict";

const at = id => document.getElementById(id);
const make = (tag, props = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), props);
  element.append(...children);
  return element;
};

// --- Markdown, built as DOM nodes so that text is never parsed as HTML ---

const INLINE = [
  [/`([^`\n]+)`/, m => make("code", { textContent: m[1] })],
  [/\*\*([^*\n]+)\*\*/, m => make("strong", {}, ...inline(m[1]))],
  [/\*([^*\s][^*\n]*)\*/, m => make("em", {}, ...inline(m[1]))],
  [/~~([^~\n]+)~~/, m => make("del", {}, ...inline(m[1]))],
  [/\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/, m => link(m[2], m[1])],
  [/https?:\/\/[^\s<>()]+[^\s<>().,;:!?]/, m => link(m[0], m[0])],
];
const link = (href, text) => make("a", { href, textContent: text, target: "_blank", rel: "noopener noreferrer" });

function inline(text) {
  const nodes = [];
  while (text) {
    let first = null;
    for (const [pattern, build] of INLINE) {
      const match = pattern.exec(text);
      if (match && (!first || match.index < first.match.index)) first = { match, build };
    }
    if (!first) break;
    nodes.push(text.slice(0, first.match.index), first.build(first.match));
    text = text.slice(first.match.index + first.match[0].length);
  }
  return [...nodes, text];
}

function codeBlock(language, code) {
  const copy = copyButton(() => code);
  return make("div", { className: "code" },
    make("div", {}, make("span", { textContent: language || "code" }), copy),
    make("pre", {}, make("code", { textContent: code })));
}

const ITEM = /^(\s*)(?:[-*+]|\d+[.)])\s+(.*)$/;
const OTHER = /^\s*(```|~~~|#{1,6}\s|>)/;   // begins a block of another kind than a paragraph
const cells = line => line.trim().replace(/^\||\|$/g, "").split("|").map(cell => cell.trim());

// The items from `start` on that are indented at least as far as its first one.
function list(lines, start) {
  const indent = ITEM.exec(lines[start])[1].length;
  const element = make(/^\s*\d/.test(lines[start]) ? "ol" : "ul");
  let i = start;
  while (i < lines.length) {
    const item = ITEM.exec(lines[i]);
    if (!item || item[1].length < indent) break;
    if (item[1].length > indent + 1 && element.lastChild) {
      const [nested, next] = list(lines, i);
      element.lastChild.append(nested);
      i = next;
    } else {
      element.append(make("li", {}, ...inline(item[2])));
      i++;
    }
  }
  return [element, i];
}

function markdown(text) {
  const lines = text.split("\n"), blocks = [];
  for (let i = 0; i < lines.length;) {
    const line = lines[i];
    const fence = /^\s*(```+|~~~+)\s*(\S*)/.exec(line);
    const heading = /^(#{1,6})\s+(.*)$/.exec(line);
    if (fence) {
      let end = i + 1;
      while (end < lines.length && !lines[end].trimStart().startsWith(fence[1])) end++;
      blocks.push(codeBlock(fence[2], lines.slice(i + 1, end).join("\n")));
      i = end + 1;
    } else if (heading) {
      blocks.push(make("h" + Math.min(heading[1].length + 1, 6), {}, ...inline(heading[2])));
      i++;
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      blocks.push(make("hr"));
      i++;
    } else if (ITEM.test(line)) {
      const [element, next] = list(lines, i);
      blocks.push(element);
      i = next;
    } else if (/^\s*>/.test(line)) {
      let end = i;
      while (end < lines.length && /^\s*>/.test(lines[end])) end++;
      const quoted = lines.slice(i, end).map(line => line.replace(/^\s*> ?/, "")).join("\n");
      blocks.push(make("blockquote", {}, ...markdown(quoted)));
      i = end;
    } else if (line.includes("|") && /^[\s|:-]+$/.test(lines[i + 1] ?? "") && lines[i + 1].includes("-")) {
      const row = (line, tag) => make("tr", {}, ...cells(line).map(cell => make(tag, {}, ...inline(cell))));
      const table = make("table", {}, make("thead", {}, row(line, "th")), make("tbody"));
      for (i += 2; i < lines.length && lines[i].includes("|"); i++) table.lastChild.append(row(lines[i], "td"));
      blocks.push(table);
    } else if (!line.trim()) {
      i++;
    } else {
      const paragraph = make("p", {}, ...inline(line));
      for (i++; i < lines.length && lines[i].trim() && !OTHER.test(lines[i]) && !ITEM.test(lines[i]); i++) {
        paragraph.append(make("br"), ...inline(lines[i]));
      }
      blocks.push(paragraph);
    }
  }
  return blocks;
}

function copyButton(text) {
  const button = make("button", { type: "button", textContent: "Copy" });
  button.addEventListener("click", async () => {
    button.textContent = await navigator.clipboard.writeText(text()).then(() => "Copied", () => "Not allowed");
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}

// --- Memory: the conversation and the settings stay in this browser, the key only in this tab ---

const SETTINGS = ["system", "temperature", "top_p", "top_k", "max_tokens", "seed"];
const recall = (store, name, otherwise) => {
  try { return JSON.parse(store.getItem("bitnet." + name)) ?? otherwise; } catch { return otherwise; }
};
const keep = (store, name, value) => {
  try { store.setItem("bitnet." + name, JSON.stringify(value)); } catch { /* private windows may refuse */ }
};

let messages = recall(localStorage, "talk", []);
let running = null;   // the AbortController of the answer that streams
let editing = null;   // index of the message that the composer replaces

// --- The conversation on screen ---

let follows = true;   // whether the reader is at the bottom
const talk = at("talk");
talk.addEventListener("scroll", () => {
  follows = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 60;
  at("latest").hidden = follows;
});
at("latest").addEventListener("click", () => { follows = true; follow(); });
function follow() {
  if (follows) talk.scrollTop = talk.scrollHeight;
  else at("latest").hidden = false;
}

function actionsOf(index) {
  const { role, content, facts } = messages[index];
  const actions = make("div", { className: "actions" }, copyButton(() => content));
  const button = (text, act) => {
    const button = make("button", { type: "button", textContent: text });
    button.addEventListener("click", () => { if (!running) act(); });
    actions.append(button);
  };
  if (role === "user") button("Edit", () => edit(index));
  if (role === "assistant" && index === messages.length - 1) button("Regenerate", () => regenerate(index));
  if (facts) actions.append(make("span", { className: "facts", textContent: facts }));
  return actions;
}

// What the model thought, folded; open while it still thinks.
function folded(thought, open) {
  return make("details", { className: "thought", open },
    make("summary", { textContent: open ? "Thinking …" : "Thought" }), ...markdown(thought));
}

function contents(thought, content, thinks) {
  return [...(thought ? [folded(thought, thinks)] : []), ...markdown(content)];
}

function block(role, content, thought) {
  const body = make("div", { className: "body" });
  body.append(...(role === "assistant" ? contents(thought, content, false) : [content]));
  return make("article", { className: "message " + role, ariaLabel: role === "user" ? "You" : "Model" }, body);
}

function draw() {
  const empty = make("p", { className: "empty", textContent: "Write below to begin." });
  const blocks = messages.map((message, index) => {
    const element = block(message.role, message.content, message.thought);
    element.append(actionsOf(index));
    return element;
  });
  talk.replaceChildren(...(blocks.length ? blocks : [empty]));
  follow();
}

function notice(text, ...actions) {
  at("notice").replaceChildren(text, ...actions.map(([label, act]) => {
    const button = make("button", { type: "button", textContent: label });
    button.addEventListener("click", act);
    return button;
  }));
}

// --- Asking ---

function headers() {
  const key = at("key").value;
  return { "content-type": "application/json", ...(key && { authorization: "Bearer " + key }) };
}

function body() {
  const system = at("system").value.trim();
  const said = messages.map(({ role, content, thought }) =>
    ({ role, content, ...(thought && { reasoning_content: thought }) }));
  const all = system ? [{ role: "system", content: system }, ...said] : said;
  const body = { messages: all, stream: true, stream_options: { include_usage: true } };
  for (const name of SETTINGS.slice(1)) if (at(name).value !== "") body[name] = Number(at(name).value);
  return body;
}

class Refused extends Error {
  constructor(status, error, fallback) {
    super(error?.message ?? fallback);
    Object.assign(this, { status, code: error?.code });
  }
}

// The events of one stream. A connection that breaks is continued where it was, byte for byte: the server computes the
// same text again for the same body and seed.
async function* answer(request, signal, told) {
  let last = null, seed = null;
  for (let attempt = 0; ; attempt++) {
    try {
      const extra = last ? { "last-event-id": last, "x-seed": seed } : {};
      const reply = await fetch("v1/chat/completions",
        { method: "POST", headers: { ...headers(), ...extra }, body: JSON.stringify(request), signal });
      if (!reply.ok) {
        const body = await reply.json().catch(() => null);
        throw new Refused(reply.status, body?.error, reply.status + " " + reply.statusText);
      }
      seed = reply.headers.get("x-seed");
      told.seed = seed;
      told.template = reply.headers.get("x-chat-template");
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ;) {
        const { value, done } = await reader.read();
        if (done) throw new TypeError("the stream ended early");
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) {
          const field = name => part.split("\n").find(line => line.startsWith(name + ": "))?.slice(name.length + 2);
          last = field("id") ?? last;
          const data = field("data");
          if (data === "[DONE]") return;
          if (data) yield JSON.parse(data);
        }
      }
    } catch (error) {
      if (!(error instanceof TypeError) || !last || attempt === 3) throw error;
      notice("The connection broke; continuing where it was …");
      await new Promise(done => setTimeout(done, 500 << attempt));
    }
  }
}

async function ask() {
  running = new AbortController();
  const talkOfThis = messages, begun = performance.now(), told = {};
  let text = "", thought = "", usage = null, finish = null, drawn = false;
  busy(true);
  draw();
  const shown = block("assistant", "");
  talk.append(shown);
  const redraw = () => { drawn = false; shown.firstChild.replaceChildren(...contents(thought, text, !text)); follow(); };
  try {
    for await (const event of answer(body(), running.signal, told)) {
      if (event.error) throw new Refused(0, event.error, "the server failed");
      const choice = event.choices[0];
      thought += choice?.delta.reasoning_content ?? "";
      text += choice?.delta.content ?? "";
      finish = choice?.finish_reason ?? finish;
      usage = event.usage ?? usage;
      if (!drawn) { drawn = true; requestAnimationFrame(redraw); }
    }
    notice(told.template ? "This model has no chat template; the messages were joined as plain text." : "");
  } catch (error) {
    if (error.name === "AbortError") notice("Stopped.");
    else failed(error);
  }
  running = null;
  busy(false);
  if (talkOfThis !== messages) return;
  if (text || thought) {
    const seconds = (performance.now() - begun) / 1000, tokens = usage?.completion_tokens;
    const cached = usage?.prompt_tokens_details?.cached_tokens;
    const facts = [tokens && `${tokens} tokens in ${seconds.toFixed(1)} s`,
      cached && `${cached} of ${usage.prompt_tokens} prompt tokens from the cache`,
      told.seed && `seed ${told.seed}`, finish === "length" && "cut at the maximum length"];
    messages.push({ role: "assistant", content: text, ...(thought && { thought }), facts: facts.filter(Boolean).join(" · ") });
  } else if (messages.at(-1)?.role === "user") {
    // Nothing was answered: the question goes back into the composer.
    at("text").value ||= messages.pop().content;
    grow();
  }
  keep(localStorage, "talk", messages);
  draw();
}

function failed(error) {
  if (error.status === 401) {
    at("key-box").hidden = false;
    at("key").focus();
    return notice("This server needs an API key.");
  }
  const cures = [];
  if (error.code === "context_length_exceeded" && messages.length > 2) {
    cures.push(["Drop the oldest turn and ask again", () => { messages.splice(0, 2); retry(); }]);
  }
  if (error.code === "context_length_exceeded") cures.push(["New chat", fresh]);
  else cures.push(["Try again", retry]);
  notice(error.message + " ", ...cures);
}

function retry() {
  const text = at("text").value.trim();
  if (text && !running) submit(text);
}

function submit(text) {
  if (editing !== null) messages.length = editing;
  editing = null;
  messages.push({ role: "user", content: text });
  keep(localStorage, "talk", messages);
  at("text").value = "";
  grow();
  follows = true;
  ask();
}

function edit(index) {
  editing = index;
  at("text").value = messages[index].content;
  grow();
  at("text").focus();
  notice("Sending replaces this message and what follows it.",
    ["Cancel", () => { editing = null; at("text").value = ""; grow(); notice(""); }]);
}

function regenerate(index) {
  messages.length = index;
  follows = true;
  ask();
}

function fresh() {
  running?.abort();
  messages = [];
  editing = null;
  keep(localStorage, "talk", messages);
  notice("");
  draw();
  at("text").focus();
}

function busy(on) {
  at("stop").hidden = !on;
  at("send").hidden = on;
  talk.ariaBusy = String(on);
}

function grow() {
  const text = at("text");
  text.style.height = "auto";
  text.style.height = text.scrollHeight + 2 + "px";
}

at("form").addEventListener("submit", event => {
  event.preventDefault();
  const text = at("text").value.trim();
  if (running) return notice("Still answering. Press Stop, or wait, before sending.");
  if (text) submit(text);
});
at("text").addEventListener("input", grow);
at("text").addEventListener("keydown", event => {
  // While an input method composes a character, Enter chooses it.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  at("form").requestSubmit();
});
at("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", event => { if (event.key === "Escape") running?.abort(); });
at("new").addEventListener("click", fresh);

for (const name of ["settings", "engine"]) {
  at("show-" + name).addEventListener("click", () => {
    const hidden = at(name).toggleAttribute("hidden");
    at("show-" + name).setAttribute("aria-expanded", String(!hidden));
    if (name === "engine" && !hidden) watch();
  });
}
const settings = recall(localStorage, "settings", {});
for (const name of SETTINGS) {
  at(name).value = settings[name] ?? "";
  at(name).addEventListener("input", () => {
    keep(localStorage, "settings", Object.fromEntries(SETTINGS.map(name => [name, at(name).value])));
  });
}
at("key").value = recall(sessionStorage, "key", "");
at("key").addEventListener("change", () => { keep(sessionStorage, "key", at("key").value); greet(); });

// --- The engine, as it works ---

const PERIOD = 200, COLUMNS = 60;
const seen = [];      // {running, waiting} of the last moments, oldest first
let before = null;    // the counters at the moment before

async function watch() {
  if (at("engine").hidden) { before = null; return; }
  const begun = performance.now();
  if (!document.hidden) {
    const stats = await fetch("stats", { headers: headers() }).then(reply => reply.ok ? reply.json() : null, () => null);
    if (stats) picture(stats, begun);
  }
  setTimeout(watch, Math.max(0, PERIOD - (performance.now() - begun)));
}

function picture(stats, now) {
  const value = name => stats[name]?.[0]?.value ?? 0;
  const rows = stats.bitnet_step_rows?.[0] ?? { count: 0, sum: 0 };
  const next = { now, tokens: value("bitnet_generation_tokens_total"), steps: rows.count, rows: rows.sum };
  const moment = { running: value("bitnet_requests_running"), waiting: value("bitnet_requests_waiting") };
  seen.push(moment);
  if (seen.length > COLUMNS) seen.shift();
  if (before) {
    const seconds = (now - before.now) / 1000, steps = next.steps - before.steps;
    at("rate").textContent = ((next.tokens - before.tokens) / seconds).toFixed(0);
    at("step-rate").textContent = (steps / seconds).toFixed(0);
    at("rows").textContent = steps ? ((next.rows - before.rows) / steps).toFixed(1) : "–";
  }
  before = next;
  at("running").textContent = moment.running;
  at("waiting").textContent = moment.waiting;
  const blocks = value("bitnet_kv_blocks");
  at("cache").textContent = blocks ? (100 * value("bitnet_kv_blocks_used") / blocks).toFixed(0) + " %" : "–";
  const found = value("bitnet_prefix_cache_hits_tokens_total");
  const read = [stats.bitnet_cache_host_hits_tokens_total, stats.bitnet_cache_folder_hits_tokens_total]
    .map(metric => metric?.[0].value);
  at("computed").textContent = value("bitnet_prefix_cache_queries_tokens_total") - found;
  at("in-memory").textContent = Math.max(0, found - (read[0] ?? 0) - (read[1] ?? 0));
  at("from-host").textContent = read[0] ?? "–";
  at("from-disk").textContent = read[1] ?? "–";
  paint();
}

// A column a moment, a square a sequence: those in the batch from the bottom, those that wait on top of them.
function paint() {
  const canvas = at("steps"), scale = devicePixelRatio || 1, style = getComputedStyle(canvas);
  const width = canvas.width = canvas.clientWidth * scale, height = canvas.height = canvas.clientHeight * scale;
  const context = canvas.getContext("2d");
  const highest = Math.max(8, ...seen.map(m => m.running + m.waiting));
  const step = width / COLUMNS, unit = height / (highest + 1);
  const colour = name => style.getPropertyValue(name);
  seen.forEach((moment, i) => {
    const x = width - (seen.length - i) * step;
    for (let n = 0; n < moment.running + moment.waiting; n++) {
      context.fillStyle = colour(n < moment.running ? "--accent" : "--waiting");
      context.fillRect(x + scale / 2, height - (n + 1) * unit + scale / 2, step - scale, Math.max(unit - scale, 1));
    }
  });
  const last = seen.at(-1);
  canvas.ariaLabel = `${last.running} sequences in the batch, ${last.waiting} waiting`;
}

// --- Beginning ---

async function greet() {
  const reply = await fetch("v1/models", { headers: headers() }).catch(() => null);
  if (!reply) return notice("The server does not answer.");
  at("key-box").hidden = reply.status !== 401 && !at("key").value;
  if (reply.status === 401) return notice("This server needs an API key.");
  const model = await reply.json().then(body => body.data?.[0], () => null);
  at("model").textContent = model?.id ?? "";
  if (model) document.title = model.id + " – bitnet";
  notice("");
}

draw();
grow();
greet();
