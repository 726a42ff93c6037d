// What the next request is made of, apart from its messages.

import { computed, signal } from "@preact/signals";
import { getJson } from "./api";
import { parse } from "./json";
import { refuseMistakes } from "./mistake";
import { chatFields, completionFields } from "./openapi";

export type Mode = "chat" | "completion";

export interface Model {
    id: string;
    max_model_len?: number;
    parent?: string;
}

export interface Tool {
    name: string;
    description: string;
    /** JSON Schema of its arguments, as text. */
    parameters: string;
}

export const models = signal<Model[]>([]);
export const model = signal("");
export const mode = signal<Mode>("chat");
export const system = signal("");
export const showTokens = signal(true);
export const tools = signal<Tool[]>([]);
export const toolChoice = signal("auto");

/** Values of fields that differ from their default, by name. */
export const values = signal<Readonly<Record<string, unknown>>>({});

export type Format = "text" | "json_object" | "json_schema";
export const format = signal<Format>("text");
export const formatSchema = signal(
    '{\n  "type": "object",\n  "properties": {"name": {"type": "string"}},\n  "required": ["name"]\n}',
);

/** Models that are known to write reasoning blocks. */
const reasoning = signal<ReadonlySet<string>>(new Set());

/** Models that are known to see images; null: the server does not say. */
const seeing = signal<ReadonlySet<string> | null>(null);

/** Whether questions may have images. */
export const seesImages = computed(() => mode.value === "chat" && (seeing.value?.has(model.value) ?? true));

export const contextTokens = computed(() => models.value.find((each) => each.id === model.value)?.max_model_len ?? 0);

export function setValue(name: string, value: unknown): void {
    const { [name]: _, ...others } = values.value;
    values.value = value === undefined ? others : { ...others, [name]: value };
}

export async function loadModels(): Promise<void> {
    const { data } = await getJson<{ data: Model[] }>("openai/v1/models");
    models.value = data.filter((each) => each.max_model_len !== undefined); // others are not in memory
    if (!models.value.some((each) => each.id === model.value)) model.value = models.value[0]?.id ?? "";
    try {
        const listed = await getJson<{
            data: { id: string; reasoning?: boolean; mode?: string; input_modalities?: string[] }[];
        }>("friendli/serverless/v1/models");
        reasoning.value = new Set(listed.data.filter((each) => each.reasoning).map((each) => each.id));
        seeing.value = new Set(
            listed.data.filter((each) => each.input_modalities?.includes("image")).map((each) => each.id),
        );
        if (listed.data.find((each) => each.id === model.value)?.mode === "completion") mode.value = "completion";
    } catch {
        // that dialect may be switched off: reasoning is then folded by its marks alone, and images are offered to all
    }
}

/** Returns the fields of a request, without its prompt. Throws where a field is not what it should be. */
export function requestFields(kind: Mode): Record<string, unknown> {
    const known = new Set((kind === "chat" ? chatFields : completionFields).value.map((field) => field.name));
    const fields: Record<string, unknown> = {};
    if (model.value) fields["model"] = model.value;
    for (const [name, value] of Object.entries(values.value)) if (known.has(name)) fields[name] = value;
    refuseMistakes(fields);
    if (format.value !== "text") {
        const schema =
            format.value === "json_schema" ? parsed(formatSchema.value, "The JSON Schema of the answer") : null;
        const json_schema = { name: "answer", schema };
        fields["response_format"] =
            format.value === "json_schema" ? { type: "json_schema", json_schema } : { type: "json_object" };
    }
    if (showTokens.value) {
        fields["return_token_ids"] = true;
        if (kind === "chat") Object.assign(fields, { logprobs: true, top_logprobs: 5 });
        else fields["logprobs"] = 5;
    }
    if (kind !== "chat") return fields;
    if (tools.value.length) {
        fields["tools"] = tools.value.map(({ name, description, parameters }) => ({
            type: "function",
            function: { name, description, parameters: parsed(parameters, `The parameters of the tool ${name}`) },
        }));
        if (toolChoice.value !== "auto") fields["tool_choice"] = toolChoice.value;
    }
    if (reasoning.value.has(model.value)) fields["separate_reasoning"] = true;
    return fields;
}

function parsed(text: string, what: string): unknown {
    try {
        return parse(text);
    } catch (error) {
        throw new Error(`${what} is not JSON: ${(error as Error).message}`);
    }
}
