// Clients of Node: openai, @anthropic-ai/sdk, ollama, and the Vercel AI SDK with its providers. Each exported function is
// a check; the outcomes are one line of JSON, by name the error of each, empty where there is none.

import assert from "node:assert/strict";
import { setTimeout as wait } from "node:timers/promises";

import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { cosineSimilarity, embedMany, generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { Ollama } from "ollama";
import OpenAI, { toFile } from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const url = process.argv[2];
const model = "embedded";
const capital = "What is the capital of France?";
const paris = "The capital of France is Paris.";
const weather = "What is the weather in Paris?";
const City = z.object({ name: z.string().max(20), inhabitants: z.number().int().min(0).max(100000000) });
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const ollama = new Ollama({ host: url });

function isCity(value) {
  assert.deepEqual(Object.keys(value).sort(), ["inhabitants", "name"]);
  City.parse(value);
}

const checks = {
  // openai
  async check_openai_chat() {
    const messages = [{ role: "user", content: capital }];
    const answer = await openai.chat.completions.create({ model, messages, temperature: 0 });
    assert.equal(answer.choices[0].message.content, paris);
    const stream = openai.chat.completions.stream({ model, messages, temperature: 0, stream_options: { include_usage: true } });
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
    assert.equal(text, paris);
    assert.equal(await stream.finalContent(), paris);
    assert.ok((await stream.totalUsage()).completion_tokens > 3);
  },
  async check_openai_parse() {
    const messages = [{ role: "user", content: "Describe Paris." }];
    const answer = await openai.chat.completions.parse({ model, messages, response_format: zodResponseFormat(City, "city") });
    isCity(answer.choices[0].message.parsed);
  },
  async check_openai_tools() {
    const runner = openai.chat.completions.runTools({
      model,
      temperature: 0,
      messages: [{ role: "user", content: weather }],
      tools: [
        {
          type: "function",
          function: { name: "get_weather", parameters, parse: JSON.parse, function: ({ city }) => `Sunny in ${city}.` },
        },
      ],
    });
    assert.ok(await runner.finalContent());
    const results = runner.messages.filter((message) => message.role === "tool");
    assert.deepEqual(results.map((message) => message.content), ["Sunny in Paris."]);
  },
  async check_openai_responses() {
    const first = await openai.responses.create({ model, input: capital, temperature: 0 });
    assert.equal(first.output_text, paris);
    const stream = openai.responses.stream({ model, input: "And of Italy?", previous_response_id: first.id, temperature: 0 });
    const kinds = [];
    for await (const event of stream) kinds.push(event.type);
    assert.equal(kinds.at(-1), "response.completed");
    const second = await stream.finalResponse();
    assert.equal((await openai.responses.retrieve(second.id)).output_text, second.output_text);
    const items = [];
    for await (const item of openai.responses.inputItems.list(second.id)) items.push(item.type);
    assert.equal(items.length, 3);
  },
  async check_openai_responses_parse_and_tools() {
    const parsed = await openai.responses.parse({
      model,
      input: "Describe Paris.",
      text: { format: zodTextFormat(City, "city") },
    });
    isCity(parsed.output_parsed);
    const tools = [{ type: "function", name: "get_weather", parameters, strict: true }];
    const asked = await openai.responses.create({ model, input: weather, tools, temperature: 0 });
    const call = asked.output.find((item) => item.type === "function_call");
    assert.deepEqual(JSON.parse(call.arguments), { city: "Paris" });
    const output = { type: "function_call_output", call_id: call.call_id, output: "Sunny." };
    const told = await openai.responses.create({ model, input: [output], previous_response_id: asked.id, tools });
    assert.equal(told.status, "completed");
  },
  async check_openai_background() {
    const begun = await openai.responses.create({ model, input: capital, background: true, temperature: 0 });
    assert.equal(begun.status, "queued");
    let text = "";
    for await (const event of await openai.responses.retrieve(begun.id, { stream: true })) {
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    assert.equal(text, paris);
  },
  async check_openai_conversations() {
    const conversation = await openai.conversations.create({ items: [{ role: "user", content: "My name is Ada." }] });
    await openai.responses.create({ model, input: capital, conversation: conversation.id, temperature: 0 });
    const items = [];
    for await (const item of openai.conversations.items.list(conversation.id, { order: "asc" })) items.push(item.role);
    assert.deepEqual(items, ["user", "user", "assistant"]);
    assert.equal((await openai.conversations.delete(conversation.id)).deleted, true);
    await assert.rejects(openai.conversations.retrieve(conversation.id), OpenAI.NotFoundError);
  },
  async check_openai_cancelled_background() {
    const begun = await openai.responses.create({ model, input: capital, background: true, max_output_tokens: 1500, ignore_eos: true });
    const cancelled = await openai.responses.cancel(begun.id);
    assert.ok(["cancelled", "incomplete", "completed"].includes(cancelled.status), cancelled.status);
    await openai.responses.delete(begun.id);
    await assert.rejects(openai.responses.retrieve(begun.id), OpenAI.NotFoundError);
  },
  async check_openai_batches() {
    const body = { model, temperature: 0, messages: [{ role: "user", content: capital }] };
    const line = (custom_id, more) => JSON.stringify({ custom_id, method: "POST", url: "/v1/chat/completions", body: { ...body, ...more } });
    const lines = [line("a", {}), line("b", {}), line("c", { temperature: -1 })];
    const file = await openai.files.create({ file: await toFile(Buffer.from(lines.join("\n")), "in.jsonl"), purpose: "batch" });
    let batch = await openai.batches.create({ input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h" });
    while (["validating", "in_progress", "finalizing"].includes(batch.status)) {
      await wait(100);
      batch = await openai.batches.retrieve(batch.id);
    }
    assert.deepEqual([batch.status, batch.request_counts], ["completed", { total: 3, completed: 2, failed: 1 }]);
    const read = async (id) => (await (await openai.files.content(id)).text()).trim().split("\n").map((each) => JSON.parse(each));
    const answered = await read(batch.output_file_id);
    assert.deepEqual(answered.map((each) => each.custom_id), ["a", "b"]);
    for (const each of answered) assert.equal(each.response.body.choices[0].message.content, paris);
    const [failed] = await read(batch.error_file_id);
    assert.deepEqual([failed.custom_id, failed.response.status_code], ["c", 400]);
    const listed = [];
    for await (const each of openai.batches.list({ limit: 1 })) listed.push(each.id);
    assert.ok(listed.includes(batch.id));
    assert.equal((await openai.files.delete(file.id)).deleted, true);
  },
  async check_openai_embeddings_and_models() {
    const [one, two] = (await openai.embeddings.create({ model, input: ["Paris", "Rome"] })).data;
    assert.ok(Math.abs(one.embedding.reduce((sum, each) => sum + each * each, 0) - 1) < 1e-3);
    assert.equal(one.embedding.length, two.embedding.length);

    const listed = [];
    for await (const each of openai.models.list()) listed.push(each.id);
    assert.ok(listed.includes(model));
    await assert.rejects(openai.chat.completions.create({ model: "other", messages: [] }), OpenAI.APIError);
  },

  async check_vectors_are_the_same_for_every_client() {
    const values = ["Paris", "Rome"];
    const expected = (await openai.embeddings.create({ model, input: values })).data.map((each) => each.embedding);
    const found = {
      ollama: (await ollama.embed({ model, input: values })).embeddings,
      ai: (await embedMany({ model: createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" }).embedding(model), values }))
        .embeddings,
      compatible: (
        await embedMany({
          model: createOpenAICompatible({ name: "dragoman", baseURL: `${url}/v1` }).textEmbeddingModel(model),
          values,
        })
      ).embeddings,
    };
    for (const [name, vectors] of Object.entries(found)) {
      assert.equal(vectors.length, 2, name);
      vectors.forEach((each, i) => assert.ok(cosineSimilarity(each, expected[i]) > 0.99999, name));
    }
  },

  // @anthropic-ai/sdk
  async check_anthropic_messages() {
    const body = { model, max_tokens: 60, temperature: 0, messages: [{ role: "user", content: capital }] };
    assert.equal((await anthropic.messages.create(body)).content[0].text, paris);
    const stream = anthropic.messages.stream(body);
    let text = "";
    stream.on("text", (delta) => (text += delta));
    assert.equal(await stream.finalText(), paris);
    assert.equal(text, paris);
    assert.ok((await anthropic.messages.countTokens({ model, messages: body.messages })).input_tokens > 5);
  },
  async check_anthropic_tools() {
    const tools = [{ name: "get_weather", input_schema: parameters }];
    const messages = [{ role: "user", content: weather }];
    const body = { model, max_tokens: 80, temperature: 0, tools };
    for (const asked of [
      await anthropic.messages.create({ ...body, messages }),
      await anthropic.messages.stream({ ...body, messages }).finalMessage(),
    ]) {
      assert.equal(asked.stop_reason, "tool_use");
      const use = asked.content.find((block) => block.type === "tool_use");
      assert.deepEqual(use.input, { city: "Paris" });
      const result = { type: "tool_result", tool_use_id: use.id, content: "Sunny." };
      const turns = [...messages, { role: "assistant", content: asked.content }, { role: "user", content: [result] }];
      assert.ok((await anthropic.messages.create({ ...body, messages: turns })).content.length);
    }
  },
  async check_anthropic_tool_runner() {
    const found = [];
    const run = ({ city }) => {
      found.push(city);
      return `Sunny in ${city}, 20 degrees.`;
    };
    const runner = (stream) =>
      anthropic.beta.messages.toolRunner({
        model,
        max_tokens: 80,
        temperature: 0,
        max_iterations: 4,
        messages: [{ role: "user", content: weather }],
        tools: [betaTool({ name: "get_weather", description: "Get the weather of a city.", inputSchema: parameters, run })],
        stream,
      });
    const last = await runner(false);
    assert.equal(last.stop_reason, "end_turn");
    for await (const stream of runner(true)) for await (const event of stream) assert.ok(event.type);
    assert.deepEqual(found, ["Paris", "Paris"]);
  },
  async check_anthropic_batches() {
    const params = { model, max_tokens: 60, temperature: 0, messages: [{ role: "user", content: capital }] };
    const requests = [{ custom_id: "a", params }, { custom_id: "b", params: { ...params, temperature: -1 } }];
    let batch = await anthropic.messages.batches.create({ requests });
    while (batch.processing_status !== "ended") {
      await wait(100);
      batch = await anthropic.messages.batches.retrieve(batch.id);
    }
    const results = {};
    for await (const each of await anthropic.messages.batches.results(batch.id)) results[each.custom_id] = each.result;
    assert.equal(results.a.message.content[0].text, paris);
    assert.equal(results.b.error.error.type, "invalid_request_error");
    const listed = [];
    for await (const each of anthropic.messages.batches.list({ limit: 1 })) listed.push(each.id);
    assert.ok(listed.includes(batch.id));
    assert.equal((await anthropic.messages.batches.delete(batch.id)).type, "message_batch_deleted");
  },
  async check_anthropic_errors() {
    await assert.rejects(anthropic.messages.create({ model, max_tokens: 0, messages: [] }), Anthropic.BadRequestError);
  },

  // ollama
  async check_ollama_chat() {
    const messages = [{ role: "user", content: capital }];
    const options = { temperature: 0 };
    assert.equal((await ollama.chat({ model, messages, options })).message.content, paris);
    let text = "";
    for await (const part of await ollama.chat({ model, messages, options, stream: true })) text += part.message.content;
    assert.equal(text, paris);
    assert.ok((await ollama.generate({ model, prompt: capital, options })).response);
  },
  async check_ollama_tools_and_formats() {
    const tools = [{ type: "function", function: { name: "get_weather", description: "The weather.", parameters } }];
    const messages = [{ role: "user", content: weather }];
    const asked = await ollama.chat({ model, messages, tools, options: { temperature: 0 } });
    assert.deepEqual(asked.message.tool_calls[0].function.arguments, { city: "Paris" });
    messages.push(asked.message, { role: "tool", tool_name: "get_weather", content: "Sunny." });
    assert.ok((await ollama.chat({ model, messages, tools })).message.content);
    const format = z.toJSONSchema(City);
    const formed = await ollama.chat({ model, messages: [{ role: "user", content: "Describe Paris." }], format });
    isCity(JSON.parse(formed.message.content));
  },
  async check_ollama_models() {
    assert.ok((await ollama.list()).models.some((each) => each.name.startsWith(model)));
    assert.ok((await ollama.show({ model })).capabilities.includes("completion"));
  },
};

// The AI SDK: its providers are models of one interface.
const providers = {
  chat: createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" }).chat(model),
  responses: createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" }).responses(model),
  compatible: createOpenAICompatible({
    name: "dragoman",
    baseURL: `${url}/v1`,
    apiKey: "none",
    includeUsage: true,
    supportsStructuredOutputs: true,
  })(model),
  anthropic: createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" })(model),
};
const tools = {
  get_weather: tool({
    description: "Get the weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `Sunny in ${city}.`,
  }),
};

for (const [name, provider] of Object.entries(providers)) {
  const shared = { model: provider, temperature: 0, maxRetries: 0 };
  checks[`check_ai_${name}_text`] = async () => {
    const answer = await generateText({ ...shared, prompt: capital });
    assert.equal(answer.text, paris);
    assert.ok(answer.usage.outputTokens > 3);
    const streamed = streamText({ ...shared, prompt: capital });
    const pieces = [];
    for await (const piece of streamed.textStream) pieces.push(piece);
    assert.equal(pieces.join(""), paris);
    assert.ok(pieces.length > 2);
    assert.equal(await streamed.finishReason, "stop");
    assert.ok((await streamed.usage).outputTokens > 3);
  };
  checks[`check_ai_${name}_tools`] = async () => {
    const asked = { ...shared, prompt: weather, tools, stopWhen: stepCountIs(2) };
    const answer = await generateText(asked);
    assert.deepEqual(answer.steps[0].toolResults.map((each) => each.output), ["Sunny in Paris."]);
    assert.equal(answer.steps.length, 2);
    const streamed = streamText(asked);
    await streamed.consumeStream();
    const steps = await streamed.steps;
    assert.deepEqual(steps[0].toolResults.map((each) => each.output), ["Sunny in Paris."]);
  };
  checks[`check_ai_${name}_objects`] = async () => {
    isCity((await generateObject({ ...shared, prompt: "Describe Paris.", schema: City })).object);
    const streamed = streamObject({ ...shared, prompt: "Describe Paris.", schema: City });
    for await (const part of streamed.partialObjectStream) assert.ok(part);
    isCity(await streamed.object);
  };
}

const outcomes = {};
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    outcomes[name] = "";
  } catch (error) {
    outcomes[name] = String(error.stack ?? error) + (error.responseBody ? `\n${error.responseBody}` : "");
  }
}
console.log(JSON.stringify(outcomes));
