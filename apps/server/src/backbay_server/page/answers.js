// Answers as they come: server-sent events over fetch.

export class RequestFault extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function* answer(body, key, signal) {
  yield* post("/v1/chat/completions", signal, {
    headers: { "content-type": "application/json", ...authorization(key) },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
  });
}

// The transcripts of sounds, one after the other, as events of an answer; a text precedes each, such as names.
export async function* transcript(model, { text, sounds }, key, signal) {
  for (const [number, url] of sounds.entries()) {
    const body = new FormData(), data = atob(url.slice(url.indexOf(",") + 1));
    for (const [name, value] of Object.entries({ model, prompt: text, stream: "true" })) body.append(name, value);
    body.append("file", new Blob([Uint8Array.from(data, (letter) => letter.charCodeAt(0))]));
    let said = false;
    for await (const { delta } of post("/v1/audio/transcriptions", signal, { headers: authorization(key), body })) {
      if (!delta) continue; // the whole, at the end
      yield { choices: [{ delta: { content: said || !number ? delta : `\n\n${delta}` } }] };
      said = true;
    }
    if (!said) yield { choices: [{ finish_reason: "silence" }] };
  }
}

async function* post(path, signal, request) {
  const response = await fetch(path, { method: "POST", ...request, signal });
  if (!response.ok) throw await fault(response);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new RequestFault(500, event.error.message);
    yield event;
    if (event.type === "transcript.text.done") return;
  }
  throw new RequestFault(0, "The connection ended in the midst of the answer.");
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let kept = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (kept + value).split("\n\n");
    kept = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}

export async function get(path, key) {
  const response = await fetch(path, { headers: authorization(key) });
  if (!response.ok) throw await fault(response);
  return response.json();
}

function authorization(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function fault(response) {
  let message = `The server answers with status ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch { /* not JSON: the status says it */ }
  const again = response.headers.get("retry-after");
  return new RequestFault(response.status, again ? `${message} (again in ${again} s)` : message);
}
