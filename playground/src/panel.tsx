// The settings of the next request.

import { useState } from "preact/hooks";
import { SchemaInput } from "./form";
import { type Field, FREQUENT, chatFields, completionFields } from "./openapi";
import {
    type Format,
    format,
    formatSchema,
    mode,
    model,
    models,
    setValue,
    showTokens,
    system,
    toolChoice,
    tools,
    values,
} from "./settings";

function FieldRow({ field }: { field: Field }) {
    const id = `field-${field.name}`;
    const fallback = field.schema.default;
    return (
        <div class="field">
            <label for={id}>
                <code>{field.name}</code>
            </label>
            <SchemaInput
                id={id}
                kind={field.kind}
                value={values.value[field.name]}
                describedBy={`${id}-help`}
                placeholder={
                    fallback === undefined || fallback === null || typeof fallback === "object"
                        ? undefined
                        : String(fallback)
                }
                onValue={(value) => setValue(field.name, value)}
            />
            <span id={`${id}-help`} class="help">
                {field.help}
            </span>
        </div>
    );
}

function Fields() {
    const [search, setSearch] = useState("");
    const all = (mode.value === "chat" ? chatFields : completionFields).value;
    const found = all.filter((field) => (field.name + field.help).toLowerCase().includes(search.toLowerCase()));
    const frequent = FREQUENT.map((name) => all.find((field) => field.name === name)).filter(
        (field) => field !== undefined,
    );
    const others = found.filter((field) => !FREQUENT.includes(field.name));
    const set = Object.keys(values.value).filter((name) => all.some((field) => field.name === name));
    return (
        <>
            <section aria-labelledby="sampling">
                <h2 id="sampling">Sampling</h2>
                {frequent.map((field) => (
                    <FieldRow key={field.name} field={field} />
                ))}
                {set.length > 0 && (
                    <p class="note">
                        Set: {set.join(", ")}.{" "}
                        <button type="button" class="quiet" onClick={() => (values.value = {})}>
                            Reset
                        </button>
                    </p>
                )}
            </section>
            <details>
                <summary>All other fields ({all.length - frequent.length})</summary>
                <div class="field">
                    <label for="search">Search the fields</label>
                    <input
                        id="search"
                        type="search"
                        value={search}
                        onInput={(event) => setSearch(event.currentTarget.value)}
                    />
                </div>
                {others.map((field) => (
                    <FieldRow key={field.name} field={field} />
                ))}
            </details>
        </>
    );
}

const EXAMPLE = {
    name: "get_weather",
    description: "The weather of a place.",
    parameters:
        '{\n  "type": "object",\n  "properties": {"place": {"type": "string", "description": "A town."}},' +
        '\n  "required": ["place"]\n}',
};

function Tools() {
    const change = (index: number, part: Partial<(typeof tools.value)[number]>) =>
        (tools.value = tools.value.map((tool, i) => (i === index ? { ...tool, ...part } : tool)));
    return (
        <details>
            <summary>Tools ({tools.value.length})</summary>
            {tools.value.map((tool, i) => (
                <fieldset key={i}>
                    <legend>Tool {i + 1}</legend>
                    <div class="field">
                        <label for={`tool-name-${i}`}>Name</label>
                        <input
                            id={`tool-name-${i}`}
                            type="text"
                            value={tool.name}
                            onInput={(event) => change(i, { name: event.currentTarget.value })}
                        />
                    </div>
                    <div class="field">
                        <label for={`tool-description-${i}`}>Description</label>
                        <input
                            id={`tool-description-${i}`}
                            type="text"
                            value={tool.description}
                            onInput={(event) => change(i, { description: event.currentTarget.value })}
                        />
                    </div>
                    <div class="field">
                        <label for={`tool-parameters-${i}`}>Parameters (JSON Schema)</label>
                        <textarea
                            id={`tool-parameters-${i}`}
                            class="mono"
                            rows={6}
                            value={tool.parameters}
                            onInput={(event) => change(i, { parameters: event.currentTarget.value })}
                        />
                    </div>
                    <button type="button" onClick={() => (tools.value = tools.value.filter((_, j) => j !== i))}>
                        Remove
                    </button>
                </fieldset>
            ))}
            <p>
                <button
                    type="button"
                    onClick={() =>
                        (tools.value = [
                            ...tools.value,
                            {
                                ...EXAMPLE,
                                name: tools.value.length ? `${EXAMPLE.name}_${tools.value.length + 1}` : EXAMPLE.name,
                            },
                        ])
                    }
                >
                    Add a tool
                </button>
            </p>
            {tools.value.length > 0 && (
                <div class="field">
                    <label for="tool-choice">Calls</label>
                    <select
                        id="tool-choice"
                        value={toolChoice.value}
                        onChange={(event) => (toolChoice.value = event.currentTarget.value)}
                    >
                        <option value="auto">as the model decides</option>
                        <option value="required">always</option>
                        <option value="none">never</option>
                    </select>
                </div>
            )}
        </details>
    );
}

function FormatSection() {
    return (
        <details>
            <summary>Format of the answer</summary>
            <div class="field">
                <label for="format">Format</label>
                <select
                    id="format"
                    value={format.value}
                    onChange={(event) => (format.value = event.currentTarget.value as Format)}
                >
                    <option value="text">text</option>
                    <option value="json_object">any JSON object</option>
                    <option value="json_schema">JSON by a schema</option>
                </select>
            </div>
            {format.value === "json_schema" && (
                <div class="field">
                    <label for="format-schema">JSON Schema</label>
                    <textarea
                        id="format-schema"
                        class="mono"
                        rows={8}
                        value={formatSchema.value}
                        onInput={(event) => (formatSchema.value = event.currentTarget.value)}
                    />
                </div>
            )}
        </details>
    );
}

export function Panel() {
    const isChat = mode.value === "chat";
    return (
        <div class="panel">
            <div class="field">
                <label for="model">Model or adapter</label>
                <select id="model" value={model.value} onChange={(event) => (model.value = event.currentTarget.value)}>
                    {models.value.map((each) => (
                        <option key={each.id} value={each.id}>
                            {each.parent ? `${each.id} (adapter of ${each.parent})` : each.id}
                        </option>
                    ))}
                </select>
            </div>
            <div class="field">
                <label for="mode">Kind of request</label>
                <select
                    id="mode"
                    value={mode.value}
                    onChange={(event) => (mode.value = event.currentTarget.value as "chat" | "completion")}
                >
                    <option value="chat">Chat</option>
                    <option value="completion">Completion</option>
                </select>
            </div>
            {isChat && (
                <div class="field">
                    <label for="system">System text</label>
                    <textarea
                        id="system"
                        dir="auto"
                        rows={3}
                        value={system.value}
                        onInput={(event) => (system.value = event.currentTarget.value)}
                    />
                </div>
            )}
            <p>
                <label>
                    <input
                        id="show-tokens"
                        type="checkbox"
                        checked={showTokens.value}
                        onChange={(event) => (showTokens.value = event.currentTarget.checked)}
                    />{" "}
                    Show tokens and their probabilities
                </label>
            </p>
            <Fields />
            <FormatSection />
            {isChat && <Tools />}
        </div>
    );
}
