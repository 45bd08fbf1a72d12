// The release key, and what is signed with it (contract 17.3).
import { createPrivateKey, createPublicKey, sign } from "node:crypto";
import { readFileSync } from "node:fs";
import { fail } from "../lib.mjs";

/** Returns the public key in FARHAND_RELEASE_KEY, or an empty text without it. */
export function releaseKey() {
  const text = process.env.FARHAND_RELEASE_KEY ?? "";
  const bytes = Buffer.from(text, "base64");
  // A private key that is here by mistake would be compiled into every agent.
  if (text !== "" && (bytes.length !== 32 || bytes.toString("base64") !== text)) fail("FARHAND_RELEASE_KEY is not a public key: 32 bytes in base64");
  return text;
}

/** Reads a private key in PEM. */
export function privateKey(file) {
  let key;
  try {
    key = createPrivateKey(readFileSync(file));
  } catch (error) {
    fail(`${file} is not a private key: ${error.message}`);
  }
  if (key.asymmetricKeyType !== "ed25519") fail(`${file} is a key of ${key.asymmetricKeyType}, not of ed25519`);
  return key;
}

/** The 32 bytes of the public key of a private key, in base64. */
export const publicKey = (key) => Buffer.from(createPublicKey(key).export({ format: "jwk" }).x, "base64url").toString("base64");

/** The signature of an agent, as in its file `.sig`. */
export const signature = (key, version, architecture, sha256) =>
  `${sign(null, Buffer.from(`farhand-agent ${version} ${architecture} ${sha256}\n`), key).toString("base64")}\n`;
