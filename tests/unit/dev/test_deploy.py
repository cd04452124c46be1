"""Names of stages, wheels and arguments, without any cloud."""

import argparse

import pytest
from dev.deploy.aws import commands
from dev.deploy.aws.stage import DeployError, find_stage
from dev.deploy.aws.wheels import tagged_name


@pytest.mark.parametrize(
    ("environment", "stage"),
    [
        ({"SILTSTONE_STAGE": "dev", "USER": "ada"}, "dev"),
        ({"USER": "ada"}, "ada"),
        ({"SILTSTONE_STAGE": "", "USER": "Ada_L.x"}, "ada-l-x"),
    ],
)
def test_the_stage_is_the_variable_or_else_the_user(environment: dict[str, str], stage: str) -> None:
    assert find_stage(environment) == stage


@pytest.mark.parametrize("environment", [{}, {"USER": "-x"}, {"USER": "a b"}, {"USER": "x" * 60}, {"USER": "ä"}])
def test_a_stage_that_no_bucket_can_be_named_after_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(DeployError, match="SILTSTONE_STAGE"):
        find_stage(environment)


def test_the_build_tag_stands_after_the_version() -> None:
    assert tagged_name("siltstone-0.1.0-py3-none-any.whl", 17) == "siltstone-0.1.0-17-py3-none-any.whl"
    for wrong in ("siltstone-0.1.0-17-py3-none-any.whl", "siltstone-0.1.0.tar.gz"):
        with pytest.raises(DeployError, match=wrong):
            tagged_name(wrong, 18)


def test_script_arguments_are_an_object_of_names_and_values() -> None:
    assert commands._script_arguments('{"--a": "x y", "b": 2}') == {"--a": "x y", "--b": "2"}
    for wrong in ("{", "[]", '{"a": [1]}', '"a"'):
        with pytest.raises(argparse.ArgumentTypeError):
            commands._script_arguments(wrong)
