"""The bounds on XML from servers; what exceeds them is measured in `tests/security/test_memory.py`."""

from __future__ import annotations

import pytest

from flowlite.node.s3 import bounded_xml

_INTERFACE = """
                        <item>
                            <networkInterfaceId>eni-0123456789abcdef0</networkInterfaceId>
                            <subnetId>subnet-0123456789abcdef0</subnetId>
                            <status>in-use</status>
                            <macAddress>02:dd:2c:5e:01:69</macAddress>
                            <groupSet>
                                <item>
                                    <groupId>sg-e4076980</groupId>
                                    <groupName>SecurityGroup1</groupName>
                                </item>
                            </groupSet>
                            <attachment>
                                <attachmentId>eni-attach-39697adc</attachmentId>
                                <deviceIndex>0</deviceIndex>
                                <status>attached</status>
                                <deleteOnTermination>true</deleteOnTermination>
                                <networkCardIndex>0</networkCardIndex>
                            </attachment>
                            <privateIpAddressesSet>
                                <item>
                                    <privateIpAddress>192.168.1.88</privateIpAddress>
                                    <primary>true</primary>
                                </item>
                            </privateIpAddressesSet>
                            <ipv6AddressesSet/>
                            <interfaceType>efa</interfaceType>
                        </item>"""


@pytest.mark.parametrize("compact", [False, True])
def test_a_page_of_machines_with_many_interfaces_passes(compact: bool) -> None:
    """One page of 50 machines with 32 network cards, in the form of EC2's documentation."""
    interfaces = _INTERFACE * 50 * 32
    if compact:
        interfaces = "".join(line.strip() for line in interfaces.splitlines())
    document = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
        f"<networkInterfaceSet>{interfaces}</networkInterfaceSet></DescribeInstancesResponse>"
    ).encode()
    assert len(document) < 4 << 20
    bounded_xml.check(document)


def test_a_full_page_of_objects_passes() -> None:
    each = (
        "<Contents><Key>{}</Key><LastModified>2026-11-24T13:00:00.000Z</LastModified><ETag>&quot;{}&quot;</ETag>"
        "<Size>1</Size><StorageClass>STANDARD</StorageClass><Owner><ID>a</ID></Owner></Contents>"
    )
    inside = "".join(each.format("%E6%98" * 170, "0" * 32) for _ in range(1000))
    document = f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inside}</ListBucketResult>'
    assert len(bounded_xml.parse(document.encode())) == 1000


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (b"<a>" * 65 + b"</a>" * 65, "elements deep"),
        (b"<a>" + b"<b/>" * 3_000 + b"</a>", "too many elements"),
        (b"<a xmlns:b='%s'/>" % (b"u" * 300), "namespaces"),
        (b"<a " + b" ".join(b"xmlns:p%d='u%d'" % (n, n) for n in range(17)) + b"/>", "namespaces"),
        (b"<%s/>" % (b"n" * 300), "names"),
        (b"<!DOCTYPE a [<!ENTITY x 'yy'>]><a>&x;</a>", "document type"),
    ],
    ids=["depth", "elements", "a namespace", "namespaces", "a name", "entities"],
)
def test_what_is_refused(document: bytes, said: str) -> None:
    with pytest.raises(bounded_xml.XmlTooCostly, match=said):
        bounded_xml.check(document)


def test_the_encoding_that_a_document_names_hides_nothing() -> None:
    document = "<?xml version='1.0' encoding='utf-16'?><a>" + "<b/>" * 3_000 + "</a>"
    with pytest.raises(bounded_xml.XmlTooCostly):
        bounded_xml.parse(document.encode("utf-16"))
