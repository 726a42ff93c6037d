// Inputs for values that a JSON Schema describes: the request's fields, and the arguments of tools.

import { useState } from "preact/hooks";
import { parse, parseInteger, stringify } from "./json";
import type { Schema } from "./openapi";

interface InputProps {
    id: string;
    kind: Schema;
    value: unknown;
    onValue: (value: unknown) => void;
    describedBy?: string | undefined;
    placeholder?: string | undefined;
}

function isTextList(kind: Schema): boolean {
    return kind.type === "array" && kind.items?.type === "string";
}

/** Returns the schema that is shown: of several alternatives a list of texts, or else any JSON. */
function plain(kind: Schema): Schema {
    const options = kind.anyOf?.flatMap((each) => each.anyOf ?? [each]).filter((each) => each.type !== "null") ?? [];
    if (!kind.anyOf) return kind;
    return options.length === 1 ? options[0]! : (options.find(isTextList) ?? {});
}

/** An input for one value; `undefined` is no value. */
export function SchemaInput({ id, kind, value, onValue, describedBy, placeholder }: InputProps) {
    const schema = plain(kind);
    const common = { id, "aria-describedby": describedBy, placeholder };
    if (schema.enum) {
        return (
            <select
                {...common}
                value={value === undefined ? "" : String(value)}
                onChange={(event) => onValue(schema.enum!.find((each) => String(each) === event.currentTarget.value))}
            >
                <option value="">default</option>
                {schema.enum.map((each) => (
                    <option value={String(each)}>{String(each)}</option>
                ))}
            </select>
        );
    }
    if (schema.type === "boolean") {
        return (
            <select
                {...common}
                value={value === undefined ? "" : String(value)}
                onChange={(event) => onValue({ true: true, false: false }[event.currentTarget.value])}
            >
                <option value="">default</option>
                <option value="true">true</option>
                <option value="false">false</option>
            </select>
        );
    }
    if (schema.type === "number" || schema.type === "integer")
        return <NumberInput {...{ id, kind: schema, value, onValue, describedBy, placeholder }} />;
    if (schema.type === "string") {
        return (
            <input
                {...common}
                type="text"
                value={(value as string) ?? ""}
                onInput={(event) => onValue(event.currentTarget.value || undefined)}
            />
        );
    }
    if (isTextList(schema)) {
        const lines = Array.isArray(value) ? value.join("\n") : "";
        return (
            <textarea
                {...common}
                rows={2}
                placeholder={placeholder ?? "one a line"}
                value={lines}
                onInput={(event) => {
                    const given = event.currentTarget.value.split("\n");
                    onValue(given.some((each) => each) ? given : undefined);
                }}
                onBlur={() => Array.isArray(value) && onValue(value.filter((each) => each))}
            />
        );
    }
    return <JsonInput {...{ id, kind: schema, value, onValue, describedBy, placeholder }} />;
}

function NumberInput({ id, kind, value, onValue, describedBy, placeholder }: InputProps) {
    const [text, setText] = useState(value === undefined ? "" : String(value));
    const parsed = kind.type === "integer" ? parseInteger(text.trim()) : text.trim() ? Number(text) : undefined;
    const low = kind.minimum !== undefined && parsed !== undefined && parsed < kind.minimum;
    const high = kind.maximum !== undefined && parsed !== undefined && parsed > kind.maximum;
    const wrong = text.trim() !== "" && (parsed === undefined || Number.isNaN(parsed) || low || high);
    return (
        <input
            id={id}
            type="text"
            inputMode={kind.type === "integer" ? "numeric" : "decimal"}
            aria-describedby={describedBy}
            aria-invalid={wrong}
            placeholder={placeholder}
            value={value === undefined && !wrong ? "" : text}
            onInput={(event) => {
                const given = event.currentTarget.value;
                setText(given);
                const number =
                    kind.type === "integer" ? parseInteger(given.trim()) : given.trim() ? Number(given) : undefined;
                onValue(typeof number === "number" && Number.isNaN(number) ? undefined : number);
            }}
        />
    );
}

function JsonInput({ id, value, onValue, describedBy, placeholder }: InputProps) {
    const [text, setText] = useState(value === undefined ? "" : stringify(value));
    const [wrong, setWrong] = useState(false);
    return (
        <textarea
            id={id}
            rows={2}
            class="mono"
            aria-describedby={describedBy}
            aria-invalid={wrong}
            placeholder={placeholder ?? "JSON"}
            value={value === undefined && !wrong ? "" : text}
            onInput={(event) => {
                const given = event.currentTarget.value;
                setText(given);
                try {
                    onValue(given.trim() ? parse(given) : undefined);
                    setWrong(false);
                } catch {
                    setWrong(true);
                    onValue(undefined);
                }
            }}
        />
    );
}

/** A form for an object: an input for each property of its schema. */
export function ObjectForm({
    id,
    schema,
    value,
    onValue,
}: {
    id: string;
    schema: Schema;
    value: Record<string, unknown>;
    onValue: (value: Record<string, unknown>) => void;
}) {
    const properties = Object.entries(schema.properties ?? {});
    if (!properties.length)
        return (
            <SchemaInput
                id={id}
                kind={{}}
                value={value}
                onValue={(each) => onValue((each as Record<string, unknown>) ?? {})}
            />
        );
    return (
        <>
            {properties.map(([name, property]) => (
                <p class="field" key={name}>
                    <label for={`${id}-${name}`}>
                        <code>{name}</code>
                        {schema.required?.includes(name) && " (required)"}
                    </label>
                    <SchemaInput
                        id={`${id}-${name}`}
                        kind={property}
                        value={value[name]}
                        describedBy={property.description ? `${id}-${name}-help` : undefined}
                        onValue={(each) => {
                            const { [name]: _, ...others } = value;
                            onValue(each === undefined ? others : { ...others, [name]: each });
                        }}
                    />
                    {property.description && (
                        <span id={`${id}-${name}-help`} class="help">
                            {property.description}
                        </span>
                    )}
                </p>
            ))}
        </>
    );
}
