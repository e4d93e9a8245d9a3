// Asks one model one question with the npm clients, and prints the answers as one JSON object.
// Arguments: base URL with /v1, model, question. The key is in SPARKFLEET_API_KEY.
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import OpenAI from "openai";

const [baseURL, model, question] = process.argv.slice(2);
const apiKey = process.env.SPARKFLEET_API_KEY;
const messages = [{ role: "user", content: question }];
const plain = { model, messages, temperature: 0, max_tokens: 60 };
const found = {};

const openai = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
found.models = (await openai.models.list()).data.map((one) => one.id);
found.chat = (await openai.chat.completions.create(plain)).choices[0].message.content;
found.stream = "";
const stream = await openai.chat.completions.create({ ...plain, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) {
  found.stream += chunk.choices[0]?.delta?.content ?? "";
  found.tokens = chunk.usage?.completion_tokens ?? found.tokens;
}
found.response = (await openai.responses.create({ model, input: question, temperature: 0, max_output_tokens: 60 })).output_text;
found.refused = await openai.chat.completions.create({ ...plain, model: "nothing" }).catch((error) => [error.status, error.code]);

const anthropic = new Anthropic({ baseURL: baseURL.replace(/\/v1$/, ""), apiKey, maxRetries: 0 });
found.message = (await anthropic.messages.create(plain)).content[0].text;
found.events = await anthropic.messages.stream(plain).finalText();
found.forbidden = await new Anthropic({ baseURL: anthropic.baseURL, apiKey: "sk-sf-wrong", maxRetries: 0 }).messages
  .create(plain)
  .catch((error) => [error.status, error.error?.error?.type]);

const compatible = createOpenAICompatible({ name: "sparkfleet", baseURL, apiKey });
const asked = { model: compatible(model), prompt: question, temperature: 0, maxOutputTokens: 60, maxRetries: 0 };
found.generated = (await generateText(asked)).text;
found.streamed = "";
for await (const part of streamText(asked).textStream) found.streamed += part;

console.log(JSON.stringify(found));
