// Vercel's ai with the providers of Anthropic (messages) and OpenAI (responses).
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, streamText, tool } from "ai";
import { z } from "zod";
import { assert, assertArguments, run } from "./checks.mjs";

const baseURL = `${process.argv[2]}/v1`;
const models = {
  messages: createAnthropic({ baseURL, apiKey: "none" })("target"),
  responses: createOpenAI({ baseURL, apiKey: "none" })("target"),
};
const schema = z.object({
  city: z.enum(["Paris", "Oslo"]),
  days: z.union([z.literal(1), z.literal(2), z.literal(3)]),
});
const tools = { get_weather: tool({ description: "The weather.", inputSchema: schema, strict: true }) };
const prompt = "What is the weather in Paris?";
const common = { prompt, maxRetries: 0, providerOptions: { openai: { store: false } } };
const checks = {};

for (const [path, model] of Object.entries(models)) {
  checks[`${path} text`] = async () => {
    assert((await generateText({ ...common, model, maxOutputTokens: 8 })).text, "no text");
  };
  checks[`${path} streamed`] = async () => {
    let text = "";
    const errors = [];
    const onError = ({ error }) => errors.push(String(error));
    const answer = streamText({ ...common, model, maxOutputTokens: 8, onError });
    for await (const part of answer.textStream) text += part;
    assert(text && !errors.length, errors);
  };
  checks[`${path} tools`] = async () => {
    const wanted = { ...common, model, tools, toolChoice: "required", maxOutputTokens: 200 };
    assertArguments((await generateText(wanted)).toolCalls[0].input);
    assertArguments((await streamText(wanted).toolCalls)[0].input);
  };
  checks[`${path} second turn`] = async () => {
    const first = await generateText({ ...common, model, maxOutputTokens: 8 });
    const messages = [
      { role: "user", content: prompt }, ...first.response.messages, { role: "user", content: "More" },
    ];
    const second = await generateText({ ...common, prompt: undefined, messages, model, maxOutputTokens: 8 });
    assert(second.text, "no text");
  };
}

await run(checks);
