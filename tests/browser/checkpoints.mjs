// Checkpoints for what the demo is too small for.

import { randomFillSync } from "node:crypto";
import { closeSync, cpSync, mkdirSync, openSync, readFileSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";

const TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}";

/** GPT-2's letters for all bytes, of which printable ones are themselves. */
function letters() {
  let shifted = 0x100;
  const printable = (byte) => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(printable(byte) ? byte : shifted++));
}

/** A byte-level tokenizer.json. @param {Record<string, number>} vocab @param {[string, string][]} merges */
function tokenizer(vocab, merges) {
  const level = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false };
  const model = { type: "BPE", dropout: null, unk_token: null, fuse_unk: false, byte_fallback: false, vocab, merges };
  return { version: "1.0", added_tokens: [], normalizer: null, pre_tokenizer: level, post_processor: null, decoder: level, model };
}

/** @param {string} folder @param {object} tokenizer */
function writeText(folder, tokenizer) {
  // Indented, as the hub has it: a third larger.
  writeFileSync(join(folder, "tokenizer.json"), JSON.stringify(tokenizer, null, 2));
  writeFileSync(join(folder, "tokenizer_config.json"), JSON.stringify({ chat_template: TEMPLATE }));
}

/** A checkpoint of the repository that has no tokenizer, with one that has a token for each byte. */
export function withBytes(from, folder) {
  cpSync(from, folder, { recursive: true });
  writeText(folder, tokenizer(Object.fromEntries(letters().map((letter, byte) => [letter, byte])), []));
}

/** 150 M random weights, and a tokenizer as large as Gemma 3's: 262,144 tokens, some 514,000 merges. */
export function large(folder) {
  mkdirSync(folder);
  const [hidden, intermediate, layers, vocab] = [256, 4096, 24, 262_144];
  const config = {
    architectures: ["LlamaForCausalLM"], model_type: "llama", vocab_size: vocab, hidden_size: hidden, intermediate_size: intermediate,
    num_hidden_layers: layers, num_attention_heads: 4, num_key_value_heads: 4, max_position_embeddings: 2048, rms_norm_eps: 1e-5,
    rope_theta: 10000, hidden_act: "silu", tie_word_embeddings: true, bos_token_id: 0, eos_token_id: 1, dtype: "bfloat16",
  };
  writeFileSync(join(folder, "config.json"), JSON.stringify(config));
  const shapes = { "model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden] };
  for (let i = 0; i < layers; i += 1) {
    const layer = `model.layers.${i}`;
    for (const name of ["input_layernorm", "post_attention_layernorm"]) shapes[`${layer}.${name}.weight`] = [hidden];
    for (const name of ["q", "k", "v", "o"]) shapes[`${layer}.self_attn.${name}_proj.weight`] = [hidden, hidden];
    for (const name of ["gate", "up"]) shapes[`${layer}.mlp.${name}_proj.weight`] = [intermediate, hidden];
    shapes[`${layer}.mlp.down_proj.weight`] = [hidden, intermediate];
  }
  let end = 0;
  const header = {};
  for (const [name, shape] of Object.entries(shapes)) {
    const start = end;
    end += 2 * shape.reduce((product, length) => product * length);
    header[name] = { dtype: "BF16", shape, data_offsets: [start, end] };
  }
  const json = Buffer.from(JSON.stringify(header));
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(json.length));
  const file = openSync(join(folder, "model.safetensors"), "w");
  writeSync(file, size);
  writeSync(file, json);
  // Random signs and mantissas, one exponent: of magnitude 1/32.
  const words = new Uint16Array(1 << 21);
  for (let at = 0; at < end; at += 2 * words.length) {
    randomFillSync(words);
    words.forEach((word, i) => (words[i] = (word & 0x807f) | 0x3d00));
    writeSync(file, new Uint8Array(words.buffer), 0, Math.min(2 * words.length, end - at));
  }
  closeSync(file);
  writeText(folder, largeTokenizer(vocab));
}

/** @param {number} size */
function largeTokenizer(size) {
  const vocab = Object.fromEntries(letters().map((letter, byte) => [letter, byte]));
  const merges = [];
  let [count, shorter] = [256, [..."abcdef"]];
  while (count < size) {
    const longer = [];
    for (const start of shorter) {
      for (const letter of "abcdef") {
        if (count === size) break;
        const token = start + letter;
        vocab[token] = count++;
        longer.push(token);
        merges.push([start, letter]);
        if (token.length > 2) merges.push([token[0], token.slice(1)]);
      }
    }
    shorter = longer;
  }
  return tokenizer(vocab, merges);
}

/** Bytes of a checkpoint's tokenizer. @param {string} folder */
export const tokenizerBytes = (folder) => readFileSync(join(folder, "tokenizer.json")).length;
