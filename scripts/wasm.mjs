// Reads wasm files.
const CODE_SECTION = 10;

/** Returns the size of each function in a wasm file, in bytes. */
export function functionSizes(bytes) {
  let at = 8;
  // Reads an unsigned LEB128 number.
  const number = () => {
    let value = 0;
    for (let shift = 0; ; shift += 7) {
      const byte = bytes[at++];
      value += (byte & 127) * 2 ** shift;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const section = bytes[at++];
    const end = number() + at;
    if (section === CODE_SECTION) {
      return Array.from({ length: number() }, () => {
        const size = number();
        at += size;
        return size;
      });
    }
    at = end;
  }
  throw new Error("a wasm file without code");
}
