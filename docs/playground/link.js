// A text as part of an address, and back: deflated, in letters that need no escape.

async function through(stream, data, most = Infinity) {
  const source = new Blob([data]).stream().pipeThrough(stream);
  const pieces = [];
  let size = 0;
  for (const reader = source.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > most) throw new RangeError("the text is too long");
    pieces.push(value);
  }
  return new Uint8Array(await new Blob(pieces).arrayBuffer());
}

export async function pack(text) {
  const bytes = await through(new CompressionStream("deflate-raw"), text);
  const letters = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return btoa(letters).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

export async function unpack(letters, most) {
  const plain = atob(letters.replace(/-/g, "+").replace(/_/g, "/"));
  const bytes = Uint8Array.from(plain, (letter) => letter.charCodeAt(0));
  const data = await through(new DecompressionStream("deflate-raw"), bytes, most);
  return new TextDecoder("utf-8", { fatal: true }).decode(data);
}
