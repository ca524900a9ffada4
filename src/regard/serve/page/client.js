// Requests to the service: API key, errors as one sentence, and retries while the service is busy.

const KEY = "regard-key";
const MOST_TRIES = 20;

export class RequestError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export const setKey = (key) => sessionStorage.setItem(KEY, key);

function headers() {
  const key = sessionStorage.getItem(KEY);
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

function wait(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}

async function failure(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch { /* not JSON: the status is all that is known */ }
  const message = error.message ?? `The service answered with the status ${response.status}.`;
  return { message: sentence(message), code: error.code };
}

function sentence(text) {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}

// The response of the service. `onBusy(seconds)` is called each second while the page waits
// before it retries, and `onBusy(0)` when it retries.
export async function send(path, { body, signal, onBusy = () => {} } = {}) {
  for (let tries = 1; ; tries++) {
    let response;
    try {
      response = await fetch(path, {
        method: body ? "POST" : "GET", headers: headers(), body: body && JSON.stringify(body), signal,
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new RequestError("The service cannot be reached: check that it is running.");
    }
    if (response.ok) return response;
    const { message, code } = await failure(response);
    const busy = response.status === 429 || (response.status === 503 && code !== "timeout");
    const pause = Number(response.headers.get("Retry-After"));
    if (busy && pause && tries < MOST_TRIES) {
      for (let left = pause; left > 0; left--) {
        onBusy(left);
        await wait(1, signal);
      }
      onBusy(0);
      continue;
    }
    if (response.status === 401 || response.status === 403) {
      document.dispatchEvent(new CustomEvent("key-needed"));
    }
    throw new RequestError(message, response.status);
  }
}

export const get = async (path) => (await send(path)).json();
export const post = async (path, body, options) => (await send(path, { body, ...options })).json();

// The data of server-sent events, up to "[DONE]".
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value).split(/\r?\n\r?\n/);
    text = parts.pop();
    for (const part of parts) {
      const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5).trim()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}
