"use strict";

// Text of a model enters the document by textContent alone. The key stays in this script.

const REFRESH_MS = 2000, DRAW_MS = 250, PLOT_SECONDS = 120;
const MAX_SPANS = 1500, MAX_SHOWN_CHARACTERS = 200000;

const find = (id) => document.getElementById(id);
const messages = [];
let model = null, controller = null, points = [], latestSpeed = 0;

function headers() {
  const key = find("key").value;
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
}

function notice(text) {
  find("notice").textContent = text;
}

async function failure(response) {
  let message = `status ${response.status}`;
  try {
    const error = (await response.json()).error;
    if (error && error.message) message += `: ${error.message}`;
  } catch { /* the body is not JSON: the status has to do */ }
  return response.status === 401 ? `${message} (write it into the settings)` : message;
}

async function get(path) {
  const response = await fetch(path, { headers: headers(), referrerPolicy: "no-referrer" });
  if (!response.ok) throw new Error(await failure(response));
  return response.json();
}

function element(name, className, text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

// A message on the page. Neighbours of one kind share a span, and a long answer loses its colours
// from the beginning, so that the document stays small.
class Shown {
  constructor(role) {
    this.box = element("div", `message ${role}`);
    this.box.append(element("div", "who", role === "user" ? "you" : "model"));
    this.text = element("div", "text");
    this.text.dir = "auto";
    this.box.append(this.text);
    find("messages").append(this.box);
    this.kind = null;
    this.pending = [];
    this.characters = 0;
  }

  add(text, kind) {
    if (this.characters >= MAX_SHOWN_CHARACTERS) return;
    this.characters += text.length;
    const surplus = Math.max(0, this.characters - MAX_SHOWN_CHARACTERS);
    let part = surplus ? text.slice(0, text.length - surplus) : text;
    if (this.characters >= MAX_SHOWN_CHARACTERS) part += "\n[the rest is not shown]";
    const last = this.pending[this.pending.length - 1];
    if (last && last.kind === kind) last.text += part;
    else this.pending.push({ kind, text: part });
  }

  // Called a few times a second: to lay out the page for every token would keep it busy.
  draw() {
    if (!this.pending.length) return;
    for (const { kind, text } of this.pending) {
      if (kind !== this.kind) this.text.append(element("span", kind));
      this.kind = kind;
      this.text.lastChild.append(text);
      this.text.lastChild.normalize();
    }
    this.pending = [];
    if (this.text.children.length > MAX_SPANS) this.join();
    const log = find("messages");
    log.scrollTop = log.scrollHeight;
  }

  join() {
    const spans = [...this.text.children], old = spans.slice(0, -MAX_SPANS / 2);
    const joined = element("span", "plain", old.map((each) => each.textContent).join(""));
    this.text.replaceChildren(joined, ...spans.slice(-MAX_SPANS / 2));
  }
}

function shorten() {
  const log = find("messages");
  while (log.querySelectorAll("span").length > 2 * MAX_SPANS && log.children.length > 1) {
    log.firstChild.remove();
  }
}

async function* eventsOf(response) {
  const decoder = new TextDecoder(), reader = response.body.getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
    }
  }
}

class Answer {
  constructor() {
    this.shown = new Shown("assistant");
    this.content = [];
    this.tokens = 0;
    this.firstMs = this.lastMs = null;
    this.isComplete = false;
  }

  take(event) {
    if (event.error) throw new Error(event.error.message);
    const counts = event.speculation;
    if (counts && counts.tokens) {
      this.tokens += counts.tokens;
      this.lastMs = performance.now();
      this.firstMs ??= this.lastMs;
    }
    for (const choice of event.choices || []) {
      const delta = choice.delta || {};
      const kind = counts && counts.accepted_tokens ? "drafted" : "plain";
      if (delta.reasoning_content) this.shown.add(delta.reasoning_content, `${kind} reasoning`);
      if (delta.content) {
        this.content.push(delta.content);
        this.shown.add(delta.content, kind);
      }
      if (choice.finish_reason) this.isComplete = true;
    }
    const usage = event.usage && event.usage.specdecode;
    if (usage && usage.accept_length) find("accept").textContent = usage.accept_length.toFixed(2);
  }

  get speed() {
    const seconds = (this.lastMs - this.firstMs) / 1000;
    return seconds > 0 ? (this.tokens - 1) / seconds : null;
  }

  draw() {
    this.shown.draw();
    if (this.speed === null) return;
    latestSpeed = this.speed;
    find("speed").textContent = this.speed.toFixed(1);
  }
}

function bodyOf() {
  const temperature = find("temperature").valueAsNumber, limit = find("limit").valueAsNumber;
  return JSON.stringify({
    model, messages, stream: true, stream_options: { include_usage: true },
    return_speculation: true,
    ...(Number.isFinite(temperature) && { temperature }),
    ...(Number.isFinite(limit) && { max_tokens: limit }),
  });
}

async function ask(text) {
  messages.push({ role: "user", content: text });
  const question = new Shown("user");
  question.add(text, "plain");
  question.draw();
  shorten();
  const answer = new Answer();
  controller = new AbortController();
  setBusy(true);
  notice("");
  const drawing = setInterval(() => answer.draw(), DRAW_MS);
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST", headers: headers(), body: bodyOf(), signal: controller.signal,
      referrerPolicy: "no-referrer",
    });
    if (!response.ok) throw new Error(await failure(response));
    for await (const event of eventsOf(response)) answer.take(event);
    if (!answer.isComplete) throw new Error("the answer was cut off");
    messages.push({ role: "assistant", content: answer.content.join("") });
  } catch (error) {
    if (error.name === "AbortError") {
      messages.push({ role: "assistant", content: answer.content.join("") });
      notice("stopped");
    } else {
      messages.pop();
      notice(`No answer: ${error.message}`);
    }
  } finally {
    clearInterval(drawing);
    answer.draw();
    controller = null;
    setBusy(false);
  }
}

function setBusy(isBusy) {
  find("send").disabled = isBusy;
  find("clear").disabled = isBusy;
  find("stop").disabled = !isBusy;
}

async function refresh() {
  if (document.hidden) return;
  try {
    if (model === null) {
      model = (await get("v1/models")).data[0].id;
      find("model").textContent = model;
    }
    show(await get("v1/speculation"));
  } catch (error) {
    if (model === null) find("model").textContent = error.message;
  }
}

function show(report) {
  find("steps").textContent = `${report.num_steps} (${report.algorithm})`;
  find("reason").textContent = report.reason || "–";
  const length = report.rates.accept_length;
  find("minute").textContent = length === null ? "–" : length.toFixed(2);
  find("table").replaceChildren(...report.ranges.map((range) => {
    const row = element("tr");
    row.append(
      element("td", "", range.from_batch_size),
      element("td", "", range.candidate_steps.join(", ")),
      element("td", "", range.num_steps),
      element("td", "", range.reason),
    );
    return row;
  }));
  const now = performance.now() / 1000;
  points = points.filter((each) => now - each.at < PLOT_SECONDS);
  points.push({ at: now, speed: latestSpeed, steps: report.num_steps });
  if (controller === null) latestSpeed = 0;  // of an answer that has ended since the last point
  plot(now);
}

function plot(now) {
  const canvas = find("plot"), context = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const { width, height } = canvas;
  const top = Math.max(1, ...points.map((each) => each.speed));
  const most = Math.max(1, ...points.map((each) => each.steps));
  const x = (at) => width * (1 - (now - at) / PLOT_SECONDS);
  context.clearRect(0, 0, width, height);
  context.fillStyle = style.getPropertyValue("--drafted");
  for (const each of points) {
    const bar = (height - 20) * each.steps / most;
    context.fillRect(x(each.at) - 4, height - bar, 8, bar);
  }
  context.strokeStyle = style.getPropertyValue("--accent");
  context.lineWidth = 2;
  context.beginPath();
  for (const each of points) context.lineTo(x(each.at), height - (height - 20) * each.speed / top);
  context.stroke();
  context.fillStyle = style.getPropertyValue("--text");
  context.font = "14px system-ui, sans-serif";
  context.fillText(`${top.toFixed(0)} tokens/s, ${most} draft steps`, 6, 15);
  const latest = points[points.length - 1];
  canvas.setAttribute(
    "aria-label", `now ${latest.speed.toFixed(0)} tokens per second, ${latest.steps} draft steps`,
  );
}

function send(event) {
  event.preventDefault();
  const input = find("input"), text = input.value;
  if (controller || !text.trim()) return;
  input.value = "";
  ask(text);
}

find("form").addEventListener("submit", send);
find("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
});
find("stop").addEventListener("click", () => controller && controller.abort());
find("clear").addEventListener("click", () => {
  messages.length = 0;
  find("messages").replaceChildren();
  notice("");
});
find("key").addEventListener("change", refresh);
refresh();
setInterval(refresh, REFRESH_MS);
