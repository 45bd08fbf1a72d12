// Creates domain/data/common-passwords.bin from the frequency list of the npm package
// @zxcvbn-ts/language-common (MIT, Copyright 2012-2016 Dan Wheeler and Dropbox, Inc., 2021
// zxcvbn-ts): the COUNT most common passwords in lower case, sorted and front-coded. The first byte
// of an entry is 1 + the number of leading characters that it shares with the previous entry. The
// remaining characters follow, all printable ASCII. So a byte below 0x20 starts an entry.
//
// Run it by hand when the package changes: node scripts/common-passwords.mjs
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { root, say } from "./lib.mjs";

const COUNT = 20_500;
const MAX_SHARED = 30;

const ranked = JSON.parse(readFileSync(join(root, "node_modules/@zxcvbn-ts/language-common/src/passwords.json"), "utf8"));
const lower = ranked.map((password) => password.toLowerCase()).filter((password) => /^[\x20-\x7e]+$/.test(password));
const chosen = [...new Set(lower)].slice(0, COUNT).sort();

let previous = "";
const bytes = [];
for (const password of chosen) {
  let shared = 0;
  while (shared < MAX_SHARED && shared < previous.length && previous[shared] === password[shared]) shared += 1;
  bytes.push(1 + shared, ...Buffer.from(password.slice(shared), "ascii"));
  previous = password;
}
const packed = Buffer.from(bytes);
writeFileSync(join(root, "domain/data/common-passwords.bin"), packed);
say(`${chosen.length} passwords, ${packed.length} bytes, ${gzipSync(packed, { level: 9 }).length} gzipped`);
