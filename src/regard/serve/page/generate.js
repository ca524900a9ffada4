// Generate: a text that arrives token by token.

import { events, RequestError, send } from "./client.js";
import { announce } from "./dom.js";
import { Runner } from "./runner.js";

export function startGenerate(panel) {
  const runner = new Runner(panel);
  const form = panel.querySelector("form");
  const [box, speed, stop] = ["#generated", "#speed", "#stop"].map((id) => panel.querySelector(id));
  const [prompt, text] = [".prompt", ".text"].map((part) => box.querySelector(part));

  function request() {
    const field = (name) => form.elements[name].value;
    return {
      model: field("model"), prompt: field("prompt"), max_tokens: Number(field("max_tokens")),
      temperature: Number(field("temperature")), top_p: Number(field("top_p")),
      seed: Number(field("seed")), stop: field("stop") || null, stream: true,
      stream_options: { include_usage: true },
    };
  }

  async function generate() {
    if (!form.reportValidity()) return;
    stop.disabled = false;
    box.hidden = false;
    box.classList.add("streaming");
    prompt.textContent = form.elements.prompt.value;
    text.textContent = "";
    speed.textContent = "";
    const finished = await runner.run(async (options) => {
      const response = await send("v1/completions", { body: request(), ...options });
      runner.show("");
      const start = performance.now();
      let tokens = 0;
      for await (const chunk of events(response)) {
        if (chunk.error) throw new RequestError(chunk.error.message);
        text.append(chunk.choices[0]?.text ?? "");
        tokens = chunk.usage?.completion_tokens ?? tokens + 1;  // a chunk has one token or a few
        const rate = 1000 * tokens / (performance.now() - start);
        speed.textContent = `${tokens} tokens, ${Math.round(rate)} tokens/s`;
      }
      return true;
    });
    if (runner.running) return;  // a newer request has started
    stop.disabled = true;
    box.classList.remove("streaming");
    if (finished) announce(text.textContent);
  }

  form.addEventListener("submit", generate);
  form.elements.prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) generate();
  });
  stop.addEventListener("click", () => runner.cancel());
  return { run() {} };
}
