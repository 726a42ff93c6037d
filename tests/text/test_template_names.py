"""What a chat template reads, found from its source."""

from __future__ import annotations

from dragoman.text import ChatTemplate
from dragoman.text.template_names import TemplateNames, template_names


def test_variables_stand_by_themselves() -> None:
    names = template_names("{% if tools and not guideline %}{{ tools | tojson }}{% endif %} documents {# hidden #}")
    assert {"tools", "guideline"} <= names.variables
    assert not {"documents", "hidden"} & names.variables


def test_members_are_attributes_and_keys() -> None:
    names = template_names(
        "{% for m in messages %}{{ m.tool_calls }}{{ m['name'] }}{% if 'role' in m %}{% endif %}{% endfor %}"
    )
    assert {"tool_calls", "name", "role"} <= names.members
    assert not {"tool_calls", "name", "role"} & names.variables
    assert "messages" in names.variables - names.members


def test_a_template_that_cannot_be_read_has_none() -> None:
    assert template_names("{% if 'open") == TemplateNames()
    assert template_names("") == TemplateNames()


def test_a_chat_template_tells_what_the_one_that_renders_tools_reads() -> None:
    plain, with_tools = "{{ messages }}", "{{ messages[0].role }}{{ tools }}"
    assert ChatTemplate({"default": plain}).names == template_names(plain)
    assert ChatTemplate({"default": plain, "tool_use": with_tools}).names == template_names(with_tools)
    assert ChatTemplate({}).names == TemplateNames()
    assert ChatTemplate({"default": "{% if 'open"}).names == TemplateNames()
