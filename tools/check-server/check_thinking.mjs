// Leads a conversation of three turns with a tool through the AI SDK; `check_thinking.py` runs it and says what it needs.
//
//     node check_thinking.mjs URL MODEL compatible|responses|anthropic      # with the packages in NODE_PATH's folder
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// Packages are looked for where the caller has installed them, not beside this file.
const require = createRequire(`${process.env.NODE_PACKAGES ?? process.cwd()}/`);
const load = async (name) => import(pathToFileURL(require.resolve(name)));
const { generateText, streamText, stepCountIs, tool, jsonSchema } = await load("ai");

const [url, name, kind] = process.argv.slice(2);
const packages = { compatible: "@ai-sdk/openai-compatible", responses: "@ai-sdk/openai", anthropic: "@ai-sdk/anthropic" };
const provider = await load(packages[kind]);

function model(seed) {
  if (kind === "compatible") {
    const made = provider.createOpenAICompatible({ name: "bitnet", baseURL: `${url}/v1`, apiKey: "none" });
    return { model: made(name), seed, providerOptions: { bitnet: { reasoningEffort: "low" } } };
  }
  if (kind === "responses") {
    const made = provider.createOpenAI({ baseURL: `${url}/v1`, apiKey: "none", headers: { "X-Seed": `${seed}` } });
    const openai = { store: false, include: ["reasoning.encrypted_content"], reasoningEffort: "low", reasoningSummary: "auto", forceReasoning: true };
    return { model: made.responses(name), providerOptions: { openai } };
  }
  const made = provider.createAnthropic({ baseURL: `${url}/v1`, apiKey: "none", headers: { "X-Seed": `${seed}` } });
  return { model: made(name), providerOptions: { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } } };
}

const calls = [];
const schema = jsonSchema({
  type: "object",
  properties: { to: { type: "string", enum: ["left", "right"] }, steps: { type: "integer", enum: [1, 2, 3] } },
  required: ["to", "steps"],
  additionalProperties: false,
});
const turn = tool({
  description: "Turns.",
  inputSchema: schema,
  execute: async (input) => {
    calls.push(input);
    return "done";
  },
});

const thoughts = [];
const messages = [];
for (const [i, text] of ["Go.", "Go on.", "And now?"].entries()) {
  messages.push({ role: "user", content: text });
  // The first step calls, and the second one answers. With Anthropic's thinking, the SDK forces no call: a seed must.
  const forced = kind !== "anthropic";
  const choice = ({ stepNumber }) => ({ toolChoice: stepNumber > 0 ? "none" : forced ? "required" : "auto" });
  for (let seed = 1, before = calls.length; calls.length === before && seed < 400; seed++) {
    const settings = { ...model(seed), messages, tools: { turn }, maxRetries: 0, stopWhen: stepCountIs(2), prepareStep: choice };
    const result = i === 1 ? streamText(settings) : await generateText(settings);
    if (i === 1) await result.consumeStream();
    if (calls.length === before) continue;
    for (const step of await result.steps) {
      if (step.reasoningText) thoughts.push(step.reasoningText);
    }
    messages.push(...(await result.response).messages);
  }
}
const version = `ai ${require("ai/package.json").version}, ${require(`${packages[kind]}/package.json`).version}`;
console.log(JSON.stringify({ thoughts, calls, version }));
